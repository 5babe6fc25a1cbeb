"""The messages of SASL mechanisms, for the broker and for the client: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.

A mechanism's messages are the `auth_bytes` of SaslAuthenticate requests and responses (KIP-43, KIP-152). The modules
parse and make messages and compute proofs. They decide nothing about users: `stablelog.security.login` does.
Why the code is not a library's: docs/decisions/0029-sasl.md.
"""

from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
# Every mechanism that the broker and the client support. GSSAPI (Kerberos) is not one of them.
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
# The greatest size of a message of PLAIN or SCRAM, in bytes. Nobody has so long a name and password, and a longer message
# would take the broker's event loop long before the login.
MESSAGE_SIZE_MAX: Final = 8192


class SaslMessageError(ValueError):
    """Bytes that are not a message of their mechanism. The message of the error quotes no part of these bytes."""
