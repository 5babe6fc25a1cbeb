"""The log read in another order than it was appended. Commit order is the one view there is."""
