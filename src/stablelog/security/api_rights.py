"""The rights that clients need for the requests of an API: an operation on a resource, and what happens to a request
without the right.

The declaration of each API in `broker.apis` lists the rights for its requests. The code that serves the API checks
these rights, docs/reference/rights.md lists them, and tests compare both with the declarations.
"""

from typing import Final, NamedTuple

from stablelog.wire.acls import Operation, ResourceType


class Right(NamedTuple):
    """A right that an API requires from the client.

    Attributes:
        operation: the operation that the client must be allowed, such as READ.
        kind: the type of the resource on which it must be allowed, such as TOPIC.
        of: which of the resources in a request, in words: "each topic".
        without: what happens to a request without the right, in words. If empty, the response has Kafka's error code
            for a missing right to this type of resource.
    """

    operation: Operation
    kind: ResourceType
    of: str
    without: str = ""


LEFT_OUT: Final = "left out"


def on_topic(operation: Operation, of: str = "each topic", without: str = "") -> Right:
    """Return the right to an operation on topics. `of` says which topics of a request, and `without` what happens to a
    request without the right; empty for the usual error code.
    """
    return Right(operation, ResourceType.TOPIC, of, without)


def on_group(operation: Operation, of: str = "the group", without: str = "") -> Right:
    """Return the right to an operation on consumer groups. `of` says which groups of a request, and `without` what
    happens to a request without the right; empty for the usual error code.
    """
    return Right(operation, ResourceType.GROUP, of, without)


def on_transactional_id(operation: Operation, of: str = "the transactional id", without: str = "") -> Right:
    """Return the right to an operation on transactional ids. `of` says which ids of a request, and `without` what
    happens to a request without the right; empty for the usual error code.
    """
    return Right(operation, ResourceType.TRANSACTIONAL_ID, of, without)


def on_cluster(operation: Operation, of: str = "the cluster", without: str = "") -> Right:
    """Return the right to an operation on the cluster. `of` names the cluster in words, and `without` says what happens
    to a request without the right; empty for the usual error code.
    """
    return Right(operation, ResourceType.CLUSTER, of, without)
