"""Each API has one module with its declaration and its handler."""

import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module

import pytest

from stablelog.broker import apis
from stablelog.broker.apis import ServedApi
from stablelog.broker.apis.served import handlers, served_apis
from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import Messages, message_module

# Prints the modules of messages that are imported with the broker, which imports the modules of all APIs.
AT_THE_START = """
import sys
import stablelog.broker.server
assert "stablelog.broker.apis.alter_client_quotas" in sys.modules
print(*sorted(name for name in sys.modules if name.startswith(("kio.schema.", "stablelog.wire.extension."))))
"""
# Error codes, and the names in which own APIs and logs agree.
NO_MESSAGES = {
    "kio.schema.errors",
    "stablelog.wire.extension.children",
    "stablelog.wire.extension.transaction_groups",
}


def modules():
    return [import_module(f"{apis.__name__}.{module.name}") for module in pkgutil.iter_modules(apis.__path__)]


def test_each_module_with_a_handler_declares_the_api_of_its_name_and_no_other_does():
    declaring = {
        module.__name__ for module in modules() if isinstance(getattr(module, "API", None), ServedApi)
    }
    handling = {module.__name__ for module in modules() if hasattr(module, "handle")}
    named = {f"{apis.__name__}.{key.snake_name}" for key in ApiKey}
    assert declaring == handling == named
    for key in ApiKey:
        assert import_module(f"{apis.__name__}.{key.snake_name}").API.key is key


def test_the_tables_have_each_api_in_the_order_of_the_keys():
    assert list(served_apis()) == list(handlers()) == list(ApiKey)
    for key, api in served_apis().items():
        module = import_module(f"{apis.__name__}.{ApiKey(key).snake_name}")
        assert (api, handlers()[key]) == (module.API, module.handle)


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.snake_name)
def test_each_class_of_a_message_that_a_module_names_is_there(key):
    """The classes are imported when they are first used, so a wrong name would fail only then."""
    module = import_module(f"{apis.__name__}.{key.snake_name}")
    names = set(re.findall(r"\bmessages\.(\w+)", inspect.getsource(module)))
    assert names or key in (ApiKey.PRODUCE, ApiKey.FETCH)
    for name in names:
        assert isinstance(getattr(module.messages, name), type | int)


def test_the_classes_of_a_message_are_attributes_from_the_first_use_on():
    messages = Messages(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    modules = [message_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, kind) for kind in ("request", "response")]
    assert messages.TopicRequest is modules[0].TopicRequest
    assert messages.Cursor is modules[1].Cursor is not modules[0].Cursor
    assert "Cursor" in vars(messages)
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = messages.Nonsense


@pytest.mark.extended
def test_no_message_is_imported_before_the_first_request():
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_START], capture_output=True, text=True, check=True, timeout=120
    )
    found = set(done.stdout.split()) - NO_MESSAGES
    assert [name for name in found if not re.search(r"re(quest|sponse)_header", name)] == []
