"""Loading of keys and certificates in PEM format into an SSL context."""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

BEGIN: Final = b"-----BEGIN "
DESCRIPTORS: Final = "/proc/self/fd"  # the open files of this process, by their descriptors
JKS: Final = b"\xfe\xed\xfe\xed"
DER: Final = tuple(bytes((0x30, size)) for size in range(0x80, 0x85))  # PKCS12 stores are DER, too
NOT_PEM: Final = (
    "and only PEM files are read: `openssl pkcs12 -in STORE -out FILE.pem -nodes` converts a store"
)


class PemError(ValueError):
    """A key or a certificate cannot be used. The message tells the reason, and contains nothing of a key."""


def load_key(context: ssl.SSLContext, path: str, text: str, password: str) -> None:
    """Load a private key and its certificates into a context.

    Args:
        context: the context.
        path: the PEM file with the key and the certificates; empty to use `text`.
        text: the contents of such a file, used if `path` is empty.
        password: the password of an encrypted key; empty if there is none.

    Raises:
        PemError: the file cannot be read, or the key or the certificate cannot be used.
    """
    is_encrypted = False

    # A function, because OpenSSL would ask for the password of an encrypted key on the terminal.
    def ask() -> str:
        nonlocal is_encrypted
        is_encrypted = True
        return password

    try:
        with _pem_file(path, text) as name:
            context.load_cert_chain(name, password=ask)
    except (OSError, ValueError) as error:
        # OpenSSL gives one reason for each fault of a PEM file, so the reason is found out here.
        if is_encrypted and not _is_about_the_pair(error):
            why = (
                "ssl.key.password is wrong"
                if password
                else "the key is encrypted, and ssl.key.password is not set"
            )
            raise PemError(why) from None
        raise PemError(_kind(path) or _reason(error, "key or no certificate")) from None


def load_authorities(context: ssl.SSLContext, path: str, text: str) -> None:
    """Load the certificates of authorities into a context.

    Args:
        context: the context.
        path: the PEM file with the certificates; empty to use `text`.
        text: the contents of such a file, used if `path` is empty. Text between the certificates, such as a name, has
            no effect.

    Raises:
        PemError: the file cannot be read, or has no certificate that can be used.
    """
    try:
        content = Path(path).read_bytes() if path else text.encode()
        # Certificates are ASCII. Names between them may be not, and the ssl module takes nothing but ASCII.
        context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (OSError, ValueError) as error:
        raise PemError(_kind(path) or _reason(error, "certificate")) from None


@contextlib.contextmanager
def _pem_file(path: str, text: str) -> Iterator[str]:
    """Yield the path of a file with a PEM text, because OpenSSL reads keys only from files. On Linux the file is in
    memory: a file on a disk would remain after the process is killed.
    """
    if path:
        yield path
        return
    if hasattr(os, "memfd_create") and os.path.isdir(DESCRIPTORS):
        with open(os.memfd_create("pem"), "w", encoding="utf-8") as memory:
            memory.write(text)
            memory.flush()
            yield f"{DESCRIPTORS}/{memory.fileno()}"
        return
    handle, name = tempfile.mkstemp(prefix="stablelog-", suffix=".pem")  # mode 0600
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        yield name
    finally:
        os.unlink(name)


def _is_about_the_pair(error: Exception) -> bool:
    """Return whether an error of OpenSSL is about the pair of key and certificate: they do not belong together."""
    return isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"


def _kind(path: str) -> str:
    """Return what kind of file this is if it is not a PEM file, for example a Java key store, as words for an error
    message; empty if it may be a PEM file.
    """
    try:
        content = Path(path).read_bytes() if path else BEGIN
    except (OSError, ValueError):  # ValueError: the path contains a null character
        return ""
    if content.startswith(JKS):
        return f"it is a JKS store, {NOT_PEM} (after `keytool -importkeystore -deststoretype PKCS12`)"
    if content.startswith(DER) and BEGIN not in content:
        return f"it is a PKCS12 store or a DER file, {NOT_PEM}"
    return ""


def _reason(error: Exception, wanted: str) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no start line").replace("_", " ").lower()
        hints = {
            "key values mismatch": "the key does not belong to the first certificate",
            "no start line": f"it has no {wanted} in PEM format",
        }
        return hints.get(reason, reason)
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return f"it has no {wanted} in PEM format"
