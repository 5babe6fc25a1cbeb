"""The rows of `stablelog health`."""

from tests.advice.cli_rows import file
from tests.advice.steps import command, row, steps

ASK = command("health --address $metrics")


def _settings(line):
    return steps(file("server.properties", f"{line}\n"), command("health --config $server"))


HEALTH = [
    row(
        "--timeout is how many seconds to wait: above 0",
        command("health --timeout 0"),
        command("health --address $metrics --timeout 60"),
        seen="alive",
    ),
    row(
        "name the host and stablelog.metrics.port of the broker", command("health --address $bootstrap"), ASK
    ),
    row("is not an address: write HOST:PORT", command("health --address $metrics_port,x"), ASK),
    row(
        "sets no stablelog.metrics.port, where a broker answers",
        _settings("node.id=1"),
        _settings("stablelog.metrics.port=$metrics_port"),
        seen="alive",
    ),
    row("name the port in the broker's log by --address", _settings("stablelog.metrics.port=0"), ASK),
    row("The broker does not run, or its", command("health --address 127.0.0.1:1"), ASK, seen="alive"),
]
