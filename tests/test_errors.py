"""What messages of errors have in common."""

from stablelog.errors import did_you_mean


def test_a_wrong_name_is_answered_with_the_most_similar_ones():
    known = ["retention.ms", "retention.bytes", "order"]
    assert did_you_mean("retention.msec", known) == "; did you mean retention.ms?"
    assert did_you_mean("retention", known, count_max=2) == "; did you mean retention.ms or retention.bytes?"
    assert did_you_mean("zzz", known) == ""
