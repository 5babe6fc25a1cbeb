"""The rows of `stablelog health`."""

from tests.advice.cli_rows import file
from tests.advice.steps import command, row, steps
from tests.answering import answering

ASK = command("health --address $metrics")


def _settings(line):
    return steps(file("server.properties", f"{line}\n"), command("health --config $server"))


def _other_server(user):
    with answering(b"SSH-2.0-x\r\n") as (address, _):
        return command(f"health --address {address}")(user)


HEALTH = [
    row(
        "--timeout is how many seconds to wait: above 0",
        command("health --timeout 0"),
        command("health --address $metrics --timeout 60"),
        seen="alive",
    ),
    row("name the host and stablelog.metrics.port of the broker", _other_server, ASK),
    row(
        "give --address or --config, not both",
        steps(
            file("server.properties", "stablelog.metrics.port=$metrics_port\n"),
            command("health --address $metrics --config $server"),
        ),
        command("health --address $metrics"),
        command("health --config $server"),
        seen="alive",
    ),
    row("is not an address: write HOST:PORT", command("health --address $metrics_port,x"), ASK),
    row(
        "sets no stablelog.metrics.port, where a broker answers",
        _settings("node.id=1"),
        _settings("stablelog.metrics.port=$metrics_port"),
        seen="alive",
    ),
    row(
        "which is no port: set a number, such as",
        _settings("stablelog.metrics.port=x"),
        _settings("stablelog.metrics.port=$metrics_port"),
        seen="alive",
    ),
    row(
        "which is no host: set a name or an IP address",
        _settings("stablelog.metrics.port=$metrics_port\nstablelog.metrics.host=a..b"),
        _settings("stablelog.metrics.port=$metrics_port\nstablelog.metrics.host=127.0.0.1"),
        seen="alive",
    ),
    row("name the port in the broker's log by --address", _settings("stablelog.metrics.port=0"), ASK),
    row("The broker does not run, or its", command("health --address 127.0.0.1:1"), ASK, seen="alive"),
]
