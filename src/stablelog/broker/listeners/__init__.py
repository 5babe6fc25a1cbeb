"""Listeners: binding their addresses, their certificates, and the TLS handshakes of new connections."""
