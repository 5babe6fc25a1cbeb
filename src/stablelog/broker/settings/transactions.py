"""The settings of producers and transactions: a part of the table of all settings (`broker.settings.table`)."""

from stablelog.broker.settings.setting import BrokerSetting
from stablelog.broker.settings.topics import DAY_MS
from stablelog.settings import INT_MAX, boolean, integer

TRANSACTION_SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting(
        "producer.id.expiration.ms",
        integer(1, INT_MAX),
        str(DAY_MS),
        "The broker forgets a producer that has not written for this time. Until then, each partition keeps 60 "
        "to 170 bytes of it in memory, and about the same in each snapshot.",
        dynamic=True,
    ),
    BrokerSetting(
        "transaction.max.timeout.ms",
        integer(1, INT_MAX),
        "900000",
        "The longest transaction timeout that a producer may request.",
    ),
    BrokerSetting(
        "transactional.id.expiration.ms",
        integer(1, INT_MAX),
        str(7 * DAY_MS),
        "The broker forgets a transactional id that has had no transaction for this time.",
    ),
    BrokerSetting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        integer(1, INT_MAX),
        "1000",
        "The time between two checks for transactions that have reached their timeout.",
    ),
    BrokerSetting(
        "transaction.two.phase.commit.enable",
        boolean(),
        "true",
        "Whether a producer may prepare a transaction that outlives the producer (KIP-939).",
    ),
    BrokerSetting(
        "stablelog.max.transaction.groups",
        integer(0, 100_000),
        "1000",
        "The number of transaction groups besides the default group. Each needs two file descriptors. The "
        "broker refuses a further one with POLICY_VIOLATION.",
    ),
    BrokerSetting(
        "stablelog.transaction.strict",
        boolean(),
        "false",
        "Whether the broker refuses transactions of clients that keep their producer epoch (transaction version "
        "1: librdkafka, kafka-python, aiokafka). A delayed request of such a client could end its next "
        "transaction.",
    ),
)
