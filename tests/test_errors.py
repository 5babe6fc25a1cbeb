"""The public classes of errors, and what messages of errors have in common."""

import copy
import inspect
import pickle
import re

import pytest
from kio.schema.errors import ErrorCode

import stablelog
from stablelog import errors
from stablelog.client.responses import ClosedError, check
from stablelog.errors import did_you_mean, named
from tests import documented

PUBLIC = {
    "AuthenticationError",
    "DamageError",
    "DataLossError",
    "FencedError",
    "UnknownFormatError",
    "OffsetOutOfRangeError",
    "OutcomeUnknownError",
    "ProducerFencedError",
    "RefusedError",
    "StablelogError",
    "TransactionAbortedError",
    "UnavailableError",
    "UsageError",
}
# Each of these tells a program to do something else, so no class may be another one's base.
KINDS = (
    "DamageError",
    "DataLossError",
    "FencedError",
    "OutcomeUnknownError",
    "RefusedError",
    "UnavailableError",
    "UsageError",
)


@pytest.mark.parametrize(
    "error",
    [
        errors.RefusedError(3, "why"),
        errors.AuthenticationError(58, "why"),
        errors.ProducerFencedError(90, "why"),
        errors.RecordsRefusedError(ErrorCode.invalid_record, "why", []),
        errors.OffsetOutOfRangeError("why"),
        errors.UnknownFormatError("a summary", 2, 1, "x.log"),
        errors.DiskError("writing failed", 28, undone=False, size=12),
        errors.StoreError("why", is_rejected=True),
        ClosedError("h:1", "why"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_passes_from_one_process_to_another(error):
    """A pool of processes waits without end for an error that cannot be restored."""
    for restored in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(restored) is type(error)
        assert (str(restored), restored.args, vars(restored)) == (str(error), error.args, vars(error))


def test_a_wrong_name_is_answered_with_the_most_similar_ones():
    known = ["retention.ms", "retention.bytes", "order"]
    assert did_you_mean("retention.msec", known) == "; did you mean retention.ms?"
    assert did_you_mean("retention", known, count_max=2) == "; did you mean retention.ms or retention.bytes?"
    assert did_you_mean("zzz", known) == ""


def test_the_package_exports_its_errors():
    exported = {
        name
        for name in stablelog.__all__
        if inspect.isclass(getattr(stablelog, name)) and issubclass(getattr(stablelog, name), Exception)
    }
    assert exported == PUBLIC
    assert all(getattr(stablelog, name) is getattr(errors, name) for name in PUBLIC)


def test_every_error_has_the_one_base_and_a_name_that_ends_in_error():
    classes = [
        one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__
    ]
    assert len(classes) > len(PUBLIC)
    for one in classes:
        assert issubclass(one, stablelog.StablelogError)
        assert one.__name__.endswith("Error")


@pytest.mark.parametrize("name", KINDS)
def test_a_program_can_tell_the_kinds_of_errors_apart(name):
    one = getattr(stablelog, name)
    assert [other for other in KINDS if issubclass(one, getattr(stablelog, other))] == [name]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    above, drawn = [], {}
    for line in errors.__doc__.splitlines():
        found = re.match(r"^    ([│├└─ ]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            above = [*above[:depth], found[2]]
            drawn[found[2]] = above[depth - 1] if depth else "Exception"
    defined = {
        name: one.__bases__[0].__name__
        for name, one in vars(errors).items()
        if inspect.isclass(one) and one.__name__ == name and one.__module__ == errors.__name__
    }
    assert drawn == defined


def test_a_refused_request_has_kafkas_number_and_name_of_the_error():
    with pytest.raises(stablelog.RefusedError) as refused:
        check(ErrorCode.unknown_topic_or_partition, "asking")
    assert refused.value.code == 3
    assert refused.value.code_name == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_a_fenced_producer_gets_an_error_of_fencing(code):
    with pytest.raises(stablelog.FencedError) as fenced:
        check(code, "appending")
    assert isinstance(fenced.value, stablelog.RefusedError)
    assert fenced.value.code == code


def test_the_documents_name_each_public_error():
    rows = re.findall(r"^\| `(\w+Error)` \|(?=.*\|.*\|)", documented.page("errors.md"), re.M)
    assert set(rows) == PUBLIC


def test_no_public_signature_and_no_attribute_needs_kio():
    for name in PUBLIC:
        one = getattr(stablelog, name)
        assert "kio" not in str(inspect.signature(one.__init__)), name
        assert "ErrorCode" not in str(inspect.signature(one.__init__)), name
    assert stablelog.RefusedError(3, "no").code_name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_the_earlier_names_are_gone():
    earlier_names = ("Refused", "Corrupt", "Unavailable", "InvalidConfig", "Fenced", "NewerFormat")
    assert [name for name in earlier_names if hasattr(errors, name)] == []


def test_of_many_names_the_first_are_named_and_the_others_counted():
    assert [named(list("abc"[:count]), 2) for count in range(4)] == ["", "a", "a, b", "a, b and 1 more"]
