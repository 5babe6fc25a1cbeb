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


class SaslMessageError(ValueError):
    """Bytes that are not a message of their mechanism. The message of the error quotes no part of these bytes."""
