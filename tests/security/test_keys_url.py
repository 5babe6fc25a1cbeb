"""From where the broker takes the keys of bearer tokens."""

import pytest

from stablelog.security.keys_url import parse_keys_url


@pytest.mark.parametrize(
    "url",
    [
        "https://id.example.org/keys",
        "file:///etc/keys.json",
        "file:/etc/keys.json",
        "file://localhost/etc/keys.json",
        "http://localhost:8080/keys",
        "http://127.0.0.1/keys",
        "http://[::1]/keys",
    ],
)
def test_a_server_with_tls_a_file_and_this_machine_are_accepted(url):
    assert parse_keys_url(url) == url
    assert parse_keys_url(f" {url}\n") == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "keys.json",
        "/etc/keys.json",
        "http://id.example.org/keys",
        "file://elsewhere/etc/keys.json",
        "file://",
        "ftp://id.example.org/keys",
        "https://",
    ],
)
def test_a_place_that_others_could_replace_or_that_names_no_keys_is_refused_with_what_to_write(url):
    with pytest.raises(
        ValueError, match=r"^write https://\.\.\., or file:///path; http:// is accepted for addresses"
    ):
        parse_keys_url(url)
