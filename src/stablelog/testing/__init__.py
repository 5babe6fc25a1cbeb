"""The test tools of stablelog. Programs that use stablelog can use them in their own tests."""
