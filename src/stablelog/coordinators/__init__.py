"""Who decides: transactions, joint commits and consumer groups. Events in, decisions out; pure."""
