"""`stablelog acls`: list, add and remove ACLs."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import product
from typing import Annotated, Final, NamedTuple, TypeVar

import typer

from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.options import AsJson, Execute, command_app, examples
from stablelog.cli.output import counted, print_done, print_plan, print_rows
from stablelog.client.blocking.admin import Admin
from stablelog.errors import UsageError
from stablelog.security.acls import check_binding
from stablelog.security.principal import parse_principal
from stablelog.wire.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

app = command_app("List, add and remove ACLs.")

COLUMNS: Final = ("resource", "pattern", "name", "permission", "principal", "host", "operation")
# The operations of `--producer` and `--consumer`, as those of Kafka's kafka-acls.
PRODUCER: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
CONSUMER: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}

Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", metavar="TYPE:NAME", help="Such as User:alice. The option may be repeated."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host", metavar="ADDRESS", help="The address of the client, or *. The option may be repeated."
    ),
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="NAME", help="Such as read or describe. The option may be repeated."),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic. The option may be repeated.")
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="A group. The option may be repeated.")
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="A transactional id. The option may be repeated."),
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Allow = Annotated[bool, typer.Option("--allow", help="ACLs that allow.")]
Deny = Annotated[bool, typer.Option("--deny", help="ACLs that deny.")]
FilterPattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        metavar="TYPE",
        help="literal, prefixed, or match: each ACL that applies to the resource (default: literal and prefixed).",
    ),
]

Member = TypeVar("Member", bound=IntEnum)


class Resources(NamedTuple):
    """The resources (topics, groups and so on) whose ACLs a command lists or changes, as its options name them."""

    topics: Sequence[str]
    groups: Sequence[str]
    transactional_ids: Sequence[str]
    cluster: bool

    def named(self) -> list[tuple[ResourceType, str]]:
        """Return the type and the name of each resource."""
        return [
            *((ResourceType.TOPIC, name) for name in self.topics),
            *((ResourceType.GROUP, name) for name in self.groups),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids),
            *([(ResourceType.CLUSTER, CLUSTER_NAME)] if self.cluster else []),
        ]


def _parse(option: str, text: str, members: Sequence[Member]) -> Member:
    """Return the member of an enumeration, such as `Operation`, that the text of an option names.

    Raises:
        UsageError: no member has this name.
    """
    found = {member.name: member for member in members}.get(text.upper().replace("-", "_"))
    if found is None:
        names = ", ".join(member.name.lower() for member in members)
        raise UsageError(f"{option} {text} is not valid: use one of {names}")
    return found


def _parse_operations(texts: Iterable[str] | None) -> list[Operation]:
    allowed = [operation for operation in Operation if operation >= Operation.ALL]
    return [_parse("--operation", text, allowed) for text in texts or ()]


def _parse_principals(texts: Iterable[str] | None) -> list[str]:
    try:
        return [str(parse_principal(text)) for text in texts or ()]
    except ValueError as invalid:
        raise UsageError(f"--principal: {invalid}") from invalid


def _filters(
    resources: Resources,
    pattern: str | None,
    principals: Sequence[str] | None,
    hosts: Sequence[str] | None,
    operations: Sequence[str] | None,
    *,
    allow: bool,
    deny: bool,
) -> list[AclFilter]:
    """Return one ACL filter for each combination of the options of a command.

    Args:
        resources: the topics, groups and other resources; if there are none, the filters match all resources.
        pattern: the type of the resource pattern, such as "literal"; None for every type.
        principals: the users, such as "User:alice"; None for all.
        hosts: the addresses of the clients; None for all.
        operations: the names of operations; None for all.
        allow: whether the filters match ACLs that allow.
        deny: whether the filters match ACLs that deny. With both or neither, they match both kinds.
    """
    types = [PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH]
    pattern_type = PatternType.ANY if pattern is None else _parse("--pattern", pattern, types)
    permission = Permission.ANY if allow is deny else Permission.ALLOW if allow else Permission.DENY
    every: list[tuple[ResourceType, str | None]] = [(ResourceType.ANY, None)]
    anyone: list[str | None] = [None]
    return [
        AclFilter(kind, name, pattern_type, principal, host, operation, permission)
        for kind, name in resources.named() or every
        for principal in _parse_principals(principals) or anyone
        for host in hosts or anyone
        for operation in _parse_operations(operations) or [Operation.ANY]
    ]


def _found(admin: Admin, filters: Iterable[AclFilter]) -> list[AclBinding]:
    """Return all ACLs that match at least one of the filters, sorted and without duplicates."""
    return sorted({binding for asked in filters for binding in admin.acls.list(asked)})


def _rows(bindings: Iterable[AclBinding]) -> list[tuple[str, ...]]:
    return [
        (
            pattern.resource_type.name.lower(),
            pattern.pattern_type.name.lower(),
            pattern.name,
            permission.name.lower(),
            principal,
            host,
            operation.name.lower(),
        )
        for pattern, principal, host, operation, permission in bindings
    ]


@app.command(
    "list",
    epilog=examples("stablelog acls list", "stablelog acls list --topic orders --pattern match --json"),
)
@with_broker
def list_acls(
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    cluster: OfCluster = False,
    pattern: FilterPattern = None,
    principals: Principals = None,
    hosts: Hosts = None,
    operations: Operations = None,
    allow: Allow = False,
    deny: Deny = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """List the ACLs, or those that the options name."""
    resources = Resources(topics or (), groups or (), transactional_ids or (), cluster)
    filters = _filters(resources, pattern, principals, hosts, operations, allow=allow, deny=deny)
    print_rows("ACLs", COLUMNS, _rows(_found(broker.admin(), filters)), as_json=as_json)


def _wanted(
    resources: Resources, operations: list[Operation], *, producer: bool, consumer: bool, idempotent: bool
) -> list[tuple[ResourceType, str, Operation]]:
    """Return a tuple for each ACL that the command is to add: the type and the name of its resource, and its operation.

    Args:
        resources: the resources that the options name.
        operations: the operations of the option --operation. If there are none, and no set of ACLs is chosen, the ACLs
            are for all operations.
        producer: whether to add the set of ACLs that a producer needs.
        consumer: whether to add the set of ACLs that a consumer needs.
        idempotent: whether to add the ACL for idempotent writes on the cluster.

    Raises:
        UsageError: an option is missing, or has no meaning with another one.
    """
    named = resources.named()
    if not (producer or consumer or idempotent):
        if not named:
            raise UsageError("the resource is missing: use --topic, --group, --transactional-id or --cluster")
        return [(*one, operation) for one in named for operation in operations or [Operation.ALL]]
    if operations:
        raise UsageError("--operation cannot be combined with --producer, --consumer and --idempotent")
    if (producer or consumer) and not resources.topics:
        raise UsageError("--producer and --consumer need --topic")
    if consumer and not resources.groups:
        raise UsageError("--consumer needs --group")
    given = [sets for is_given, sets in ((producer, PRODUCER), (consumer, CONSUMER)) if is_given]
    wanted = [(kind, name, each) for kind, name in named for sets in given for each in sets.get(kind, ())]
    if idempotent:
        wanted.append((ResourceType.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE))
    unused = [name for kind, name in named if not any(kind in sets for sets in given)]
    if unused:
        raise UsageError(
            f"the command adds no ACL for the resource {unused[0]!r} with these options: name an operation "
            "with --operation"
        )
    return list(dict.fromkeys(wanted))


@app.command(
    epilog=examples(
        "stablelog acls add --allow --principal User:alice --producer --topic orders",
        "stablelog acls add --allow --principal User:bob --consumer --topic orders --group billing",
        "stablelog acls add --deny --principal User:eve --operation read --topic pay- --pattern prefixed",
    )
)
@with_broker
def add(
    allow: Allow = False,
    deny: Deny = False,
    principals: Principals = None,
    hosts: Hosts = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    cluster: OfCluster = False,
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="TYPE", help="literal, or prefixed: names that begin so.")
    ] = "literal",
    producer: Annotated[
        bool,
        typer.Option(
            "--producer",
            help="write, describe and create on topics, write and describe on transactional ids.",
        ),
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="read and describe on topics, read on groups.")
    ] = False,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="idempotent-write on the cluster.")
    ] = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Add ACLs. Without --operation, --producer or --consumer, they are for all operations."""
    if allow is deny:
        raise UsageError("the permission is missing or ambiguous: give either --allow or --deny")
    if not principals:
        raise UsageError("--principal is missing, such as User:alice, or User:* for every principal")
    resources = Resources(topics or (), groups or (), transactional_ids or (), cluster)
    pattern_type = _parse("--pattern", pattern, [PatternType.LITERAL, PatternType.PREFIXED])
    wanted = _wanted(
        resources,
        _parse_operations(operations),
        producer=producer,
        consumer=consumer,
        idempotent=idempotent,
    )
    bindings = [
        AclBinding(
            Pattern(kind, name, PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern_type),
            principal,
            host,
            operation,
            Permission.ALLOW if allow else Permission.DENY,
        )
        for (kind, name, operation), principal, host in product(
            wanted, _parse_principals(principals), hosts or [WILDCARD]
        )
    ]
    for binding in bindings:
        try:
            check_binding(binding)
        except ValueError as invalid:
            raise UsageError(str(invalid)) from invalid
    broker.admin().acls.add(bindings)
    if as_json:
        print_rows("ACLs", COLUMNS, _rows(bindings), as_json=True)
    else:
        print_done(f"added {counted(len(bindings), 'ACL')}", as_json=False)


@app.command(
    epilog=examples(
        "stablelog acls remove --principal User:bob",
        "stablelog acls remove --topic orders --pattern literal --deny --execute",
    )
)
@with_broker
def remove(
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    cluster: OfCluster = False,
    pattern: FilterPattern = None,
    principals: Principals = None,
    hosts: Hosts = None,
    operations: Operations = None,
    allow: Allow = False,
    deny: Deny = False,
    execute: Execute = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Remove the ACLs that the options name. Without --execute, only show them."""
    resources = Resources(topics or (), groups or (), transactional_ids or (), cluster)
    if not (resources.named() or pattern or principals or hosts or operations or allow or deny):
        raise UsageError("name the ACLs to remove, such as by --principal or --topic")
    filters = _filters(resources, pattern, principals, hosts, operations, allow=allow, deny=deny)
    admin = broker.admin()
    found = _found(admin, filters)
    if execute:
        admin.acls.remove(filters)
    print_plan("ACLs to remove", COLUMNS, _rows(found), is_executed=execute, as_json=as_json, items="acls")
