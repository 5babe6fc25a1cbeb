"""The fields of one record: where each of them stands, and what is wrong with a record that is not valid."""

import pytest

from stablelog.batch.record_fields import PLACES_MAX, read_fields, read_headers
from stablelog.errors import DamageError
from tests.batch.test_proof import REFUSED, record

OF_ONE_RECORD = {
    name: data
    for name, (data, count, why) in REFUSED.items()
    if count == 1
    and not why.endswith("follow the last of the 1 records")
    and "follow the last field" not in why
}


def read_all(data, begin=0, number=0, places=None):
    fields = read_fields(data, begin, number)
    end = read_headers(
        data, fields.headers, fields, fields.headers_left, number, [] if places is None else places
    )
    return fields, end


def test_each_field_begins_where_the_one_before_it_ends():
    data = b"??" + record(300, time=b"\x80\1", key=b"\4kk", value=b"\6vvv", headers=b"\2\2h\2w")
    fields, end = read_all(data, 2, 300)
    assert (fields.begin, fields.end) == (2, len(data)) == (2, end)
    # The length and the attributes have a byte each, the timestamp delta and the offset delta have two.
    assert (fields.attributes, fields.delta, fields.key_size) == (3, 6, 8)
    assert data[fields.key : fields.value_size] == b"kk"
    assert data[fields.value : fields.header_count] == b"vvv"
    assert data[fields.headers :] == b"\2h\2w"
    assert (fields.headers_left, fields.is_keyless) == (1, False)


@pytest.mark.parametrize(("key", "is_keyless"), [(b"\1", True), (b"\0", False)])
def test_a_null_is_no_empty_key(key, is_keyless):
    fields, end = read_all(record(key=key))
    assert fields.is_keyless is is_keyless
    assert (fields.key, fields.value_size, end) == (5, 5, 7)


@pytest.mark.parametrize("name", OF_ONE_RECORD)
def test_a_record_that_is_not_valid_is_refused_with_its_number(name):
    with pytest.raises(DamageError, match="record 0 of a batch is not valid: "):
        read_all(OF_ONE_RECORD[name])


def test_a_record_is_refused_if_its_offset_delta_is_not_its_number():
    with pytest.raises(DamageError, match="record 3 of a batch is not valid: the record's offset delta is 2"):
        read_fields(record(2), 0, 3)


@pytest.mark.parametrize(("count", "place_count"), [(1, 2), (3, 6), (PLACES_MAX, PLACES_MAX + 2)])
def test_the_places_of_the_lengths_of_headers_are_told_up_to_a_number(count, place_count):
    header = b"\2h\2w"
    data = record(headers=bytes([2 * count]) + count * header)
    places = []
    _, end = read_all(data, places=places)
    assert end == len(data)
    assert len(places) == place_count
    assert {data[place] for place in places} == {2}
