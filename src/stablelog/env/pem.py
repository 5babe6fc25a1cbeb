"""Keys and certificates in PEM format, as OpenSSL loads them."""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def pem_file(path: str, text: str) -> Iterator[str]:
    """Return a file that OpenSSL can read, because OpenSSL reads keys from files only.

    Args:
        path: the file; empty for a temporary file that only this user can read.
        text: the contents of the temporary file.
    """
    if path:
        yield path
        return
    handle, name = tempfile.mkstemp(prefix="stablelog-", suffix=".pem")  # mode 0600
    try:
        with open(handle, "w", encoding="ascii") as file:
            file.write(text)
        yield name
    finally:
        os.unlink(name)


def reason_of(error: Exception) -> str:
    """Return why OpenSSL or the operating system refused a file. The text never contains a key."""
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no start line").replace("_", " ").lower()
        hints = {
            "key values mismatch": "the key does not belong to the first certificate",
            "bad decrypt": "ssl.key.password is wrong",
            "bad password read": "the key is encrypted, and ssl.key.password is not set",
            "no start line": "it has no key or no certificate in PEM format",
        }
        return hints.get(reason, reason)
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return "it has no certificate in PEM format"
