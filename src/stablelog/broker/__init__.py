"""The server: writes the coordinators' decisions to logs, serves requests and runs the background tasks."""
