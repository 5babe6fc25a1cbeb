import pytest

from stablelog.errors import InvalidConfig
from stablelog.spark.options import read_options


def test_spark_lowers_the_case_of_names():
    options = read_options({"KAFKA.bootstrap.servers": "h:1", "subscribe": "a, b", "includeheaders": "true"})
    assert (options.bootstrap, options.topics, options.include_headers) == ("h:1", ("a", "b"), True)
    assert options.isolation == "read_committed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscrib": "x"}, "did you mean subscribe"),
        ({"subscribe": "x"}, "kafka.bootstrap.servers"),
        ({"bootstrap": "h:1"}, "option subscribe"),
        ({"bootstrap": "h:1", "kafka.bootstrap.servers": "h:1", "subscribe": "x"}, "the same option"),
        ({"bootstrap": "h:1", "subscribe": "x", "isolation": "dirty"}, "read_committed or"),
        ({"bootstrap": "h:1", "subscribe": "x", "includeHeaders": "1"}, "true or false"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(given, message):
    with pytest.raises(InvalidConfig, match=message):
        read_options(given)
