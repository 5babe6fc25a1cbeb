"""The pytest plugin beside pytest-asyncio and anyio: tests and fixtures of each scope, in each event loop."""

import pytest

from tests.testing.test_pytest_plugin import pytest_run

pytestmark = pytest.mark.extended

SCOPES = ("function", "class", "module", "package", "session")
COMMON = """
import pytest
import stablelog

async def exchange(client, topic):
    async with client.transaction() as txn:
        await txn.write(topic, value=b"3 chairs")
    async for transaction in client.read(topic, wait=0):
        return [record.value for record in transaction.records]
"""
FIXTURE = """
@{decorator}(scope="{scope}"{loop})
async def {name}(stablelog_broker{backend}):
    async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
        yield client
"""
TESTS = """
class Test{name}:
    {mark}
    async def test_transaction(self, {name}, stablelog_topic):
        assert await exchange({name}, stablelog_topic("orders", stablelog_order="commit")) == [b"3 chairs"]

    {mark}
    async def test_another(self, {name}, stablelog_broker, stablelog_topic):
        assert stablelog_broker.is_running
        assert await exchange({name}, stablelog_topic("orders", stablelog_order="commit")) == [b"3 chairs"]
"""
OTHERS = """
{mark}
async def test_a_lost_response(stablelog_faults, stablelog_topic):
    topic = stablelog_topic("orders", stablelog_order="commit")
    lost = stablelog_faults.faults.drop("Produce")
    async with stablelog.aio.connect(stablelog_faults.bootstrap) as client:
        assert await exchange(client, topic) == [b"3 chairs"]
    lost.wait()

{mark}
async def test_a_broker_of_its_own():
    async with stablelog.serve() as broker, stablelog.aio.connect(broker.bootstrap) as client:
        await client.admin.topics.create("orders", configs={{"stablelog.order": "commit"}})
        assert await exchange(client, "orders") == [b"3 chairs"]

def test_without_a_loop(stablelog_broker, stablelog_topic):
    with stablelog.connect(stablelog_broker.bootstrap) as client, client.transaction() as txn:
        txn.write(stablelog_topic("orders", stablelog_order="commit"), value=b"3 chairs")
"""


def for_pytest_asyncio(mode):
    """Tests with a fixture of each scope, in the loop of this scope and in that of the session. Returns how many, too."""
    decorator = {"strict": "pytest_asyncio.fixture", "auto": "pytest.fixture"}[mode]
    mark = {"strict": "@pytest.mark.asyncio", "auto": ""}[mode]
    parts = [COMMON, "import pytest_asyncio\n"]
    for scope in SCOPES:
        for loop in sorted({scope, "session"}) if mode == "strict" else ["session"]:
            name = f"{scope}_{loop}"
            given = f', loop_scope="{loop}"' if mode == "strict" else ""
            parts.append(FIXTURE.format(decorator=decorator, scope=scope, loop=given, name=name, backend=""))
            parts.append(TESTS.format(name=name, mark=f"{mark}(loop_scope={loop!r})" if mark else ""))
    parts.append(OTHERS.format(mark=mark))
    return "".join(parts), 2 * (len(parts) // 2 - 1) + 3


def for_anyio():
    """Tests with a fixture of each scope. Returns how many, too."""
    parts = [COMMON, '@pytest.fixture(scope="session")\ndef anyio_backend():\n    return "asyncio"\n']
    for name in SCOPES:
        parts.append(
            FIXTURE.format(
                decorator="pytest.fixture",
                scope=name,
                loop="",
                name=f"{name}_client",
                backend=", anyio_backend",
            )
        )
        parts.append(TESTS.format(name=f"{name}_client", mark="@pytest.mark.anyio"))
    parts.append(OTHERS.format(mark="@pytest.mark.anyio"))
    return "".join(parts), 2 * len(SCOPES) + 3


@pytest.mark.parametrize(("mode", "workers"), [("strict", 2), ("auto", 0)])
def test_the_fixtures_work_with_pytest_asyncio(tmp_path, mode, workers):
    pytest.importorskip("pytest_asyncio")
    settings = f'asyncio_mode = "{mode}"\n'
    if mode == "auto":
        settings += (
            'asyncio_default_fixture_loop_scope = "session"\nasyncio_default_test_loop_scope = "session"\n'
        )
    check(tmp_path, *for_pytest_asyncio(mode), settings, workers)


def test_the_fixtures_work_with_anyio(tmp_path):
    pytest.importorskip("anyio")
    check(tmp_path, *for_anyio(), "", 2)


def check(directory, text, count, settings, workers):
    """All tests pass, and no warning is given."""
    given = f'[tool.pytest.ini_options]\n{settings}filterwarnings = ["error"]\n'
    printed, code = pytest_run(directory, text, settings=given, options=["-n", f"{workers}"])
    assert code == 0, printed
    assert f"{count} passed" in printed
