"""A right that a client needs for an API: the operation on a resource, and what happens to a request without the right.

The declaration of each API in `broker.apis` lists its rights. The handler checks these rights, docs/security.md lists
them, and tests compare both with the declarations.
"""

from typing import Final, NamedTuple

from stablelog.wire.acls import Operation, ResourceType


class Right(NamedTuple):
    """A right that an API requires from the client.

    Attributes:
        operation: the operation.
        kind: the type of the resource.
        of: which resource of the request, in words.
        without: what happens to a request without the right, in words. Empty: the response has the error code for this
            type of resource.
    """

    operation: Operation
    kind: ResourceType
    of: str
    without: str = ""


LEFT_OUT: Final = "left out"


def on_topic(operation: Operation, of: str = "each topic", without: str = "") -> Right:
    """Return the right to an operation on topics. `of` and `without` are those of `Right`."""
    return Right(operation, ResourceType.TOPIC, of, without)


def on_group(operation: Operation, of: str = "the group", without: str = "") -> Right:
    """Return the right to an operation on consumer groups. `of` and `without` are those of `Right`."""
    return Right(operation, ResourceType.GROUP, of, without)


def on_transactional_id(operation: Operation, of: str = "the transactional id", without: str = "") -> Right:
    """Return the right to an operation on transactional ids. `of` and `without` are those of `Right`."""
    return Right(operation, ResourceType.TRANSACTIONAL_ID, of, without)


def on_cluster(operation: Operation, of: str = "the cluster", without: str = "") -> Right:
    """Return the right to an operation on the cluster. `of` and `without` are those of `Right`."""
    return Right(operation, ResourceType.CLUSTER, of, without)
