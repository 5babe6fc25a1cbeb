"""The content of `broker.json`. That it survives crashes is proven for the object that stores it (broker.directory)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.data_directory.registered_file import with_crc
from stablelog.data_directory.settings_file import Dynamic, decode_settings, encode_settings
from stablelog.errors import DamageError, UnknownFormatError
from tests.scale import examples

SETTINGS = {"log.retention.ms": "-1", "message.max.bytes": "17"}
texts = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)


@settings(max_examples=examples(25))
@given(texts, texts, st.dictionaries(st.text(max_size=4), texts, max_size=2))
def test_settings_are_read_as_they_were_written(settings, defaults, groups):
    assert decode_settings(encode_settings(settings, defaults, groups)) == (settings, defaults, groups)


def test_a_file_without_settings_of_all_brokers_has_the_version_that_earlier_releases_read():
    assert b'"version":1,' in encode_settings(SETTINGS)
    assert b'"version":1,' in encode_settings(SETTINGS, {})
    assert b'"version":2,' in encode_settings({}, SETTINGS)
    assert b'"version":3,' in encode_settings({}, {}, {"billing": SETTINGS})


def test_numbers_in_a_file_that_was_edited_are_read_as_their_texts():
    content = with_crc(b'{"version":2,"settings":{"message.max.bytes":17},"defaults":{"a":true}}')
    assert decode_settings(content) == Dynamic({"message.max.bytes": "17"}, {"a": "True"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "the file does not hold the broker's dynamic settings"),
        (b"[]", "a value in it is of another type than expected"),
        (b"{}", "it has no version"),
        (b'{"version":1}', "it has no settings"),
        (b'{"version":1,"settings":[]}', "a value in it is of another type than expected"),
        (b'{"version":2,"settings":{}}', "it has no defaults"),
        (b'{"version":3,"settings":{},"defaults":{}}', "it has no groups"),
        (b'{"version":3,"settings":{},"defaults":{},"groups":{"g":7}}', "a value in it is of another type"),
        (b'{"version":0,"settings":{}}', "the file has version 0, and this release reads versions 1 to 3"),
        (b"\xff", "the file does not hold the broker's dynamic settings: byte 0 is not UTF-8"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused_with_what_is_wrong(text, why):
    with pytest.raises(DamageError, match=why):
        decode_settings(with_crc(text))


def test_a_file_of_a_later_release_is_refused_by_version():
    with pytest.raises(
        UnknownFormatError, match="the broker's dynamic settings of version 4; this release reads"
    ):
        decode_settings(with_crc(b'{"version":4,"settings":{}}'))
