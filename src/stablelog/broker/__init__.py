"""The server: carries out what the rooms below decide."""
