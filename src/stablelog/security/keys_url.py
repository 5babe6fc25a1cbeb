"""The URL of the keys with which bearer tokens are signed."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def parse_keys_url(text: str) -> str:
    """Check the URL of a key set.

    Raises:
        ValueError: the URL is not `https://`, `file:` or, on this machine, `http://`.
    """
    url = urlsplit(text.strip())
    if url.scheme == "file" and url.netloc in ("", "localhost") and url.path:
        return text.strip()
    if url.scheme == "https" and url.hostname:
        return text.strip()
    if url.scheme == "http" and url.hostname and _is_loopback(url.hostname):
        return text.strip()
    raise ValueError(
        "write https://..., or file:///path; http:// is accepted for addresses of this machine only, because anybody on the "
        "way could replace the keys"
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
