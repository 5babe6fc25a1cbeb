"""Input of `stablelog produce`: lines, JSON lines, CSV and Parquet."""

import io
import sys
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from pyarrow import parquet

from stablelog.cli.parquet_input import read_parquet
from stablelog.cli.record_input import BadRecordError, read_csv, read_json, read_lines
from stablelog.errors import UnavailableError


def plain(records):
    """The records without their places."""
    return [tuple(record[1:]) for record in records]


def lines(text, separator=None, **others):
    return plain(read_lines(io.BytesIO(text), separator, **others))


def test_a_line_is_a_value_or_a_key_and_a_value():
    assert lines(b"a\nb\r\n\nlast") == [
        (None, value, None, None, None) for value in (b"a", b"b", b"", b"last")
    ]
    keyed = lines(b"k:v:w\n:v\nk:\nno key\n\xff:\xfe\n", b":")
    assert [record[:2] for record in keyed] == [
        (b"k", b"v:w"),
        (b"", b"v"),
        (b"k", b""),
        (None, b"no key"),
        (b"\xff", b"\xfe"),
    ]
    assert [record[:2] for record in lines(b"k:\n\nk:v\n", b":", empty_is_null=True)] == [
        (b"k", None),
        (None, None),
        (b"k", b"v"),
    ]


def json_lines(text):
    return plain(read_json(io.BytesIO(text)))


def test_a_json_line_has_the_fields_of_a_record():
    assert json_lines(
        b'{"value": "v"}\n\n  \n{"value": null, "key": null, "partition": null, "headers": null}\n'
    ) == [
        (None, b"v", None, None, None),
        (None, None, None, None, None),
    ]
    whole = b"""{"topic": "t", "offset": 7, "key": "\xc3\xa4", "value_base64": "/w==", "partition": 3, "timestamp_ms": 5,
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value": null}, {"name": "b", "value_base64": "/w=="}]}"""
    assert json_lines(whole.replace(b"\n", b"")) == [
        ("ä".encode(), b"\xff", 3, 5, [("a", b"1"), ("a", None), ("b", b"\xff")])
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"value": "v"', "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("\udcff", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"key": "k"}', "line 2 has no field `value`: add the field, with null for a tombstone"),
        ('{"value": "v", "kee": "k"}', "line 2 has the unknown field 'kee'; did you mean key?"),
        ('{"value": 1}', "line 2: value is neither text nor null"),
        ('{"value": "\\ud800"}', "line 2: value has half of a surrogate pair"),
        ('{"value": "v", "value_base64": "/w=="}', "line 2 has both value and value_base64"),
        ('{"value_base64": "no!"}', "line 2: value_base64 is not base64"),
        ('{"value_base64": 5}', "line 2: value_base64 is not base64"),
        ('{"value": "v", "partition": -1}', "line 2: partition is not a whole number from 0 to 2147483647"),
        ('{"value": "v", "partition": true}', "line 2: partition is not a whole number from 0 to 2147483647"),
        (
            '{"value": "v", "partition": 2147483648}',
            "line 2: partition is not a whole number from 0 to 2147483647",
        ),
        (
            '{"value": "v", "timestamp_ms": 9223372036854775808}',
            f"line 2: timestamp_ms is not a whole number from {-(1 << 63)} to {(1 << 63) - 1}",
        ),
        ('{"value": "v", "timestamp_ms": "now"}', "line 2: timestamp_ms is not a whole number from -"),
        ('{"value": "v", "headers": {"a": "1"}}', "line 2: headers is not a list of objects"),
        ('{"value": "v", "headers": [{"value": "1"}]}', "line 2: headers is not a list of objects"),
        (
            '{"value": "v", "headers": [{"name": "a", "valeu": "1"}]}',
            "line 2: a header has the unknown field",
        ),
        (
            '{"value": "v", "headers": [{"name": "a", "value": 1}]}',
            "line 2: header 'a': value is neither text",
        ),
    ],
)
def test_a_json_line_that_is_not_a_record_is_refused_with_its_number(line, why):
    text = b'{"value": "v"}\n' + line.encode(errors="surrogateescape") + b"\n"
    with pytest.raises(BadRecordError) as refused:
        json_lines(text)
    assert str(refused.value).startswith(why)


def rows(text, *, empty_is_null=False):
    return plain(read_csv(io.BytesIO(text), empty_is_null=empty_is_null))


def test_a_csv_row_has_columns_of_a_record():
    text = b"""\xef\xbb\xbfvalue,key,partition,timestamp_ms,header.a,header.b,topic
v,k,3,5,1,,t
"two
lines, ""quoted\""",,,,,\xff,

,k,,,,,
"""
    found = rows(text)
    assert found == [
        (b"k", b"v", 3, 5, [("a", b"1")]),
        (None, b'two\nlines, "quoted"', None, None, [("b", b"\xff")]),
        (b"k", b"", None, None, None),
    ]
    assert rows(text, empty_is_null=True)[2] == (b"k", None, None, None, None)
    assert rows(b"value\r\n" + b"x" * 1_000_000 + b"\r\n")[0][1] == b"x" * 1_000_000
    assert rows(b"") == rows(b"value\n") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("key\nk\n", "line 1 has no column `value`"),
        ("value,kee\n", "line 1 has the unknown column 'kee'; did you mean key?"),
        ("value,value\n", "line 1 has two columns of one name"),
        ('value,key\n"a\nb",k\nv\n', "line 4 has 1 cells, and there are 2 columns"),
        ('value\nv\n"open\n', "line 3 is not CSV"),
        ("value,partition\nv,x\n", "line 2: partition is not a whole number from 0 to 2147483647"),
        ("value,timestamp_ms\nv,--1\n", "line 2: timestamp_ms is not a whole number from -"),
        ("value,timestamp_ms\nv,²\n", "line 2: timestamp_ms is not a whole number from -"),
    ],
)
def test_a_csv_row_that_is_not_a_record_is_refused_with_its_number(text, why):
    with pytest.raises(BadRecordError) as refused:
        rows(text.encode())
    assert str(refused.value).startswith(why)


# -- Parquet ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    def write(**columns):
        parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"

    return write


def test_a_parquet_row_has_columns_of_a_record(written):
    structs = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    found = plain(
        read_parquet(
            written(
                key=pa.array(["k", None]),
                value=pa.array([b"\xff", None], pa.binary()),
                partition=pa.array([3, None], pa.int32()),
                timestamp_ms=pa.array([5, None]),
                headers=pa.array(
                    [[{"name": "a", "value": b"1"}, {"name": "a", "value": None}], None], structs
                ),
                topic=pa.array(["t", "t"]),
            )
        )
    )
    assert found == [(b"k", b"\xff", 3, 5, [("a", b"1"), ("a", None)]), (None, None, None, None, None)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_of_parquet_may_have_any_unit_and_zone(written, unit):
    times = [datetime(2026, 1, 31, 12, tzinfo=UTC), None]
    for zone in (None, "+05:00"):
        values = pa.array([one and one.replace(tzinfo=None) for one in times], pa.timestamp(unit))
        column = values.cast(pa.timestamp(unit, tz=zone)) if zone else values
        expected = times[0].astimezone(timezone(timedelta(hours=5))) if zone else times[0]
        found = plain(read_parquet(written(value=pa.array(["a", "b"]), timestamp=column)))
        assert [record[3] for record in found] == [round(expected.timestamp() * 1000), None]


def test_headers_of_parquet_may_be_a_map_or_those_of_spark(written):
    as_map = pa.array([[("a", b"1")]], pa.map_(pa.string(), pa.binary()))
    of_spark = pa.array([[{"key": "a", "value": b"1"}]])
    for column in (as_map, of_spark):
        assert plain(read_parquet(written(value=["v"], headers=column)))[0][4] == [("a", b"1")]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": ["k"]}, "has no column `value`"),
        ({"value": ["v"], "kee": ["k"]}, "has the unknown column 'kee'; did you mean key?"),
        ({"value": [1]}, "the column value is of type int64, and not text or bytes"),
        ({"value": ["v"], "partition": ["0"]}, "the column partition is of type string, and not an integer"),
        ({"value": ["v"], "timestamp": [1]}, "the column timestamp is of type int64, and not a timestamp"),
        ({"value": ["v"], "headers": ["h"]}, "the column headers is of type string, and not a map"),
        (
            {"value": ["v"], "timestamp": [datetime(2026, 1, 1, tzinfo=UTC)], "timestamp_ms": [1]},
            "keep one of them",
        ),
        (
            {"value": ["v", "w"], "partition": [0, -1]},
            "row 2: partition is not a whole number from 0 to 2147483647",
        ),
        ({"value": ["v"], "headers": [[{"name": None, "value": "v"}]]}, "row 1: a header has no name"),
        (
            {"value": ["v"], "headers": [[{"name": "a", "value": 1}]]},
            "row 1: a header has no name, or a value",
        ),
    ],
)
def test_a_parquet_file_without_records_is_refused(written, columns, why):
    with pytest.raises(BadRecordError, match=why.replace("?", r"\?")):
        list(read_parquet(written(**columns)))


def test_a_file_that_is_not_parquet_is_named(tmp_path):
    (tmp_path / "x").write_text("value\nv\n")
    for name in ("x", "missing"):
        with pytest.raises(UnavailableError, match=f"{name} cannot be read"):
            list(read_parquet(tmp_path / name))


def test_without_pyarrow_the_command_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError, match=r"needs pyarrow: pip install 'stablelog\[parquet\]'"):
        list(read_parquet(tmp_path / "x"))
