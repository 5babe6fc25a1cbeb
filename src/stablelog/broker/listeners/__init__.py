"""Listeners with TLS: certificates, and the handshakes of new connections."""
