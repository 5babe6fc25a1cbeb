"""What the broker does for security: logins, users and the keys of tokens. The rules are those of `stablelog.security`."""
