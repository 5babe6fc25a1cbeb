"""`stablelog quotas`: list, set and remove the quotas of clients."""

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.options import PAIR, AsJson, command_app, examples
from stablelog.cli.output import as_objects, fail, print_done, print_rows
from stablelog.wire.quotas import CLIENT_ID, IP, USER, QuotaKey, in_words

COLUMNS: Final = ("user", "client id", "ip", "quota", "value")
DEFAULT: Final = "<default>"

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="The client id.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The IP address.")]
DefaultUser = Annotated[
    bool, typer.Option("--default-user", help="The users that have no quota of their own.")
]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="The client ids that have no quota of their own.")
]
DefaultIp = Annotated[
    bool, typer.Option("--default-ip", help="The IP addresses that have no quota of their own.")
]

app = command_app("List, set and remove the quotas of clients.")


def _entity(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    *,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> dict[str, str | None]:
    """Return the entity whose quotas the command lists or changes, as the options name it: for each of its types (user,
    client id, IP address) the name. None as the name stands for the default entity of the type.

    Args:
        user: the name of a user; None if the option is missing. The same holds for `client_id` and `ip`.
        client_id: a client id.
        ip: an IP address.
        default_user: whether the entity is the default for users: its quotas apply to all users without quotas of their
            own. The same holds for `default_client_id` and `default_ip`.
        default_client_id: whether the entity is the default for client ids.
        default_ip: whether the entity is the default for IP addresses.

    Raises:
        UnavailableError: the options contradict each other.
    """
    entity: dict[str, str | None] = {}
    for kind, name, is_default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if name is not None and is_default:
            fail(f"--{kind} and --default-{kind} contradict each other: give one of them")
        if name is not None or is_default:
            entity[kind] = name
    return entity


def _named(entity: dict[str, str | None]) -> dict[str, str | None]:
    """Return the entity of a quota in the form of the JSON output, which names all three types (user, client id, IP
    address): None for a type that the entity does not have.
    """
    shown = {kind: DEFAULT if name is None else name for kind, name in entity.items()}
    return {"user": shown.get(USER), "client_id": shown.get(CLIENT_ID), "ip": shown.get(IP)}


@app.command("list", epilog=examples("stablelog quotas list", "stablelog quotas list --user alice"))
@with_broker
def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """List the quotas, or those of an entity."""
    entity = _entity(
        user,
        client_id,
        ip,
        default_user=default_user,
        default_client_id=default_client_id,
        default_ip=default_ip,
    )
    rows = []
    for found in broker.admin().quotas.list(entity):
        names = {kind: DEFAULT if name is None else name for kind, name in found.entity.items()}
        of_entity = tuple(names.get(kind) for kind in (USER, CLIENT_ID, IP))
        rows += [(*of_entity, key, value) for key, value in found.values.items()]
    print_rows(
        "quotas", COLUMNS, sorted(rows, key=lambda row: [str(cell or "") for cell in row]), as_json=as_json
    )


@app.command(
    "set",
    epilog=examples(
        "stablelog quotas set --user alice producer_byte_rate=1048576",
        "stablelog quotas set --default-client-id consumer_byte_rate=10485760 request_percentage=50",
        "stablelog quotas set --default-ip connection_creation_rate=20",
    ),
)
@with_broker
def set_quotas(
    quotas: Annotated[
        list[str],
        typer.Argument(metavar=f"{PAIR}...", help=f"The quotas: {', '.join(key.value for key in QuotaKey)}."),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Set quotas of an entity: a user, a client id, a client id of a user, or an IP address."""
    entity = _entity(
        user,
        client_id,
        ip,
        default_user=default_user,
        default_client_id=default_client_id,
        default_ip=default_ip,
    )
    values = dict(map(_parse_quota, quotas))
    _alter(broker, entity, values)
    print_done(
        f"set {', '.join(values)} of {in_words(entity.items())}",
        as_json=as_json,
        **_named(entity),
        quotas=as_objects(("quota", "value"), values.items()),
    )


def _parse_quota(text: str) -> tuple[str, float]:
    key, separator, value = text.partition("=")
    try:
        if not separator:
            raise ValueError
        return key.strip(), float(value)
    except ValueError:
        fail(f"{text!r} is not a quota: write NAME=NUMBER, such as producer_byte_rate=1048576")


@app.command(
    epilog=examples(
        "stablelog quotas remove --user alice producer_byte_rate",
        "stablelog quotas remove --user alice --client-id etl",
    )
)
@with_broker
def remove(
    quotas: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="The quotas to remove (default: all of the entity)."),
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Remove quotas of an entity."""
    entity = _entity(
        user,
        client_id,
        ip,
        default_user=default_user,
        default_client_id=default_client_id,
        default_ip=default_ip,
    )
    known = [key.value for key in QuotaKey]
    for name in quotas or ():
        if name not in known:
            fail(f"there is no quota {name!r}: the quotas are {', '.join(known)}")
    removed = list(dict.fromkeys(quotas or known))
    _alter(broker, entity, dict.fromkeys(removed))
    print_done(
        f"removed {', '.join(quotas or ['all quotas'])} of {in_words(entity.items())}",
        as_json=as_json,
        **_named(entity),
        quotas=removed,
    )


def _alter(
    broker: CommandBroker, entity: Mapping[str, str | None], changes: Mapping[str, float | None]
) -> None:
    if not entity:
        fail("the options name no entity: give --user, --client-id, --ip or a --default option")
    broker.admin().quotas.alter(entity, changes)
