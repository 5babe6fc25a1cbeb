"""The broker: serves requests, writes the decisions of the coordinators to logs, and runs background tasks."""
