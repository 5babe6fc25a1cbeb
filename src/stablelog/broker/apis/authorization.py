"""What clients may do: everything, because the broker has no authorization.

A set of operations is a number with one bit for each operation, by Kafka's number of the operation.
"""

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12

NO_AUTHORIZER = "the broker has no authorizer: there are no ACLs, and every client may do everything"


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# All operations that Kafka has for a topic and for a cluster.
TOPIC_OPERATIONS = _bits(READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
)
NOT_ASKED = -(2**31)
