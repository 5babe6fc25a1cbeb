"""Who decides: transactions and consumer groups. Events in, decisions out; pure."""
