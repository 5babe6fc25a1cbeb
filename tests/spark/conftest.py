"""One Spark session serves all tests, and they run in one process: a session takes seconds to start."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from stablelog.spark.local_session import session

    warehouse = tmp_path_factory.mktemp("warehouse")
    made = session("stablelog tests", "local[2]", spark_sql_warehouse_dir=str(warehouse))
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
