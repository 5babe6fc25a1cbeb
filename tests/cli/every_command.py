"""One row for each command that talks to a broker, and more for options that ask other questions.

The words have places in braces: a topic, a group, a transactional id and a user. A pattern is of the one line on stderr;
an empty one stands for success.
"""

from typing import NamedTuple

from typer.main import get_command

from stablelog.cli.commands import app


class Row(NamedTuple):
    """A command.

    Attributes:
        words: the words, with places.
        denied: what a user without rights is told; empty if the answer is what the user may see.
        described: what a user is told who may describe everything, and nothing more.
        kafka: what it says of Apache Kafka.
        given: the standard input.
        is_report: whether what fails is a finding on standard output, with the exit code 1.
    """

    words: str
    denied: str
    described: str = ""
    kafka: str = ""
    given: str = ""
    is_report: bool = False

    @property
    def command(self):
        """The command without its arguments and options."""
        words = self.words.split()
        return next(name for name in (words[0], " ".join(words[:2])) if name in COMMANDS)

    def filled(self, **places):
        """The words, without places."""
        return [word.format(**places) for word in self.words.split()]


def _commands(command, path=()):
    if path and not getattr(command, "commands", None):
        yield " ".join(path), command
    for name in getattr(command, "commands", ()):
        yield from _commands(command.get_command(None, name), (*path, name))


# The commands that talk to a broker.
COMMANDS = {
    words
    for words, command in _commands(get_command(app))
    if any("--bootstrap" in parameter.opts for parameter in command.params)
}
NO_TOPIC = "this user is not authorized to DESCRIBE the topic 't': ask for an ACL"
NO_GROUP = "the coordinator of 'g': the client is not authorized to DESCRIBE the group or transactional id"
NO_ID = "the coordinator of 'x': the client is not authorized to DESCRIBE the group or transactional id"
NO_READ = "the producers of [\\w-]+: the client is not authorized to READ on TOPIC '\\w+': ask for an ACL"
NO_FETCH = "reading t-[01]: this user lacks a right to the topic: ask for an ACL"
NO_COMMIT = "the offset of t-[01] of group 'g': this user lacks a right to the group: ask for an ACL"
NO_NEW_ID = "transactional id stablelog-produce-\\w+: this user is not authorized to WRITE .*: ask for an ACL"
NOT_HANGING = "no transaction is open in t-0 from offset 0; open ones begin at: none"
NOT_OPEN = "the transactional id x has no open transaction: its state is CompleteCommit"
NO_ACLS = ".*(No Authorizer is configured|no authorizer).*"


def on_cluster(right):
    """What a user is told who lacks a right to the cluster."""
    return f".* the client is not authorized to {right} on CLUSTER 'kafka-cluster': ask for an ACL"


def on_topic(right):
    """What a user is told who lacks a right to the topic."""
    return f".* the client is not authorized to {right} on TOPIC 't': ask for an ACL"


NEW = "creating topic 'new-t': the client is not authorized to CREATE on TOPIC 'new-t': ask for an ACL"
ALTER, ALTER_CONFIGS = on_cluster("ALTER"), on_cluster("ALTER_CONFIGS")
DESCRIBE, DESCRIBE_CONFIGS = on_cluster("DESCRIBE"), on_cluster("DESCRIBE_CONFIGS")
ROWS = [
    Row("topics create new-{topic}", NEW, NEW),
    Row("topics list", ""),
    Row("topics list --internal", ""),
    Row("topics describe {topic}", NO_TOPIC, NO_READ),
    Row("topics alter {topic} --config retention.ms=1000000", NO_TOPIC, on_topic("ALTER_CONFIGS")),
    Row("topics alter {topic} --partitions 9", NO_TOPIC, on_topic("ALTER")),
    Row("topics trim {topic} --before 1 --execute", NO_TOPIC, "deleting records of .*"),
    Row(
        "produce {topic}",
        NO_TOPIC,
        "writing to t: .* not authorized to WRITE .*: ask for an ACL",
        given="a\nb\n",
    ),
    Row("produce {topic} --transaction", NO_TOPIC, NO_NEW_ID, given="a\nb\n"),
    Row("produce {topic} --batch 1 --compression gzip", NO_TOPIC, NO_NEW_ID, given="a\nb\n"),
    Row("consume {topic}", NO_TOPIC, NO_FETCH),
    Row("consume {topic} --json --isolation read_uncommitted", NO_TOPIC, NO_FETCH),
    Row("consume {topic} --offset -1 --format %k=%v\\n", NO_TOPIC, NO_FETCH),
    Row("consume {topic} --offset @0", NO_TOPIC, NO_FETCH),
    Row(
        "consume {topic} --group {group}",
        NO_TOPIC,
        "group 'g': the client is not authorized to READ on GROUP 'g': ask for an ACL",
    ),
    Row("groups list", ""),
    Row("groups describe {group}", NO_GROUP),
    Row("groups reset {group} --to earliest --topic {topic} --execute", NO_GROUP, NO_COMMIT),
    Row("groups reset {group} --shift -1 --execute", NO_GROUP, NO_COMMIT),
    Row(
        "groups delete {group}",
        NO_GROUP,
        "deleting group 'g': this user lacks a right to the group: ask for an ACL",
    ),
    Row("config show", DESCRIBE_CONFIGS, DESCRIBE_CONFIGS),
    Row("config show --topic {topic}", NO_TOPIC, on_topic("DESCRIBE_CONFIGS")),
    Row("acls list", DESCRIBE, kafka=NO_ACLS),
    Row("acls add --allow --principal User:{user} --operation read --topic {topic}", ALTER, ALTER, NO_ACLS),
    Row("acls remove --topic {topic} --execute", DESCRIBE, ALTER, NO_ACLS),
    Row("users list", "listing users: this user lacks a right to the cluster: ask for an ACL"),
    Row("users add {user} --password-file - --iterations 4096", ALTER, ALTER, given="secret"),
    Row(
        "users remove {user}",
        "listing users: this user lacks a right to the cluster: ask for an ACL",
        "user '{user}' has no such credential",
    ),
    Row("quotas list", DESCRIBE_CONFIGS, DESCRIBE_CONFIGS),
    Row("quotas set producer_byte_rate=1000000000 --user {user}", ALTER_CONFIGS, ALTER_CONFIGS),
    Row("quotas remove --user {user} producer_byte_rate", ALTER_CONFIGS, ALTER_CONFIGS),
    Row("transactions list", ""),
    Row("transactions describe {id}", NO_ID),
    Row("transactions find-hanging", "", NO_READ),
    Row("transactions find-hanging --topic {topic}", NO_TOPIC, NO_READ),
    Row("transactions abort {id}", NO_ID, NOT_OPEN, NOT_OPEN),
    Row("transactions abort --topic {topic} --partition 0 --start-offset 0", NO_TOPIC, NO_READ, NOT_HANGING),
    Row(
        "cut {topic}",
        NO_TOPIC,
        "topic 't' is not commit-ordered.*",
        ".* which only a stablelog broker supports: .*",
    ),
    Row("doctor --json", DESCRIBE_CONFIGS, DESCRIBE_CONFIGS, is_report=True),
    Row("topics delete {topic}", NO_TOPIC, "deleting topic 't': .* not authorized to DELETE the topic"),
]
