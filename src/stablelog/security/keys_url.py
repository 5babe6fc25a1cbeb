"""Check of the URL from which the broker loads the keys that sign bearer tokens."""

from urllib.parse import urlsplit


def parse_keys_url(text: str) -> str:
    """Check the URL of a key set, and return it.

    Raises:
        ValueError: the URL begins with neither `https://` nor `file:`. `http://` is valid only for an address of this
            machine.
    """
    url = urlsplit(text.strip())
    if url.scheme == "file" and url.netloc in ("", "localhost") and url.path:
        return text.strip()
    from stablelog.wire.sasl.oauthbearer import is_server_url  # few brokers take tokens

    if is_server_url(url):
        return text.strip()
    raise ValueError(
        "write https://..., or file:///path; http:// is accepted for addresses of this machine only, because anybody on the "
        "way could replace the keys. Write %20 for a space, and so on"
    )
