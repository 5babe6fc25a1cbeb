"""A program that mypy --strict checks for `test_typing`, and that nothing runs. A line of a mistake says which error."""

import asyncio
import contextlib
from collections.abc import Iterator

import stablelog
import stablelog.aio


def write(client: stablelog.Client, headers: dict[str, bytes]) -> stablelog.Position:
    with client.transaction(group="", timeout=3) as txn:
        also: stablelog.Transaction = txn
        order: stablelog.WriteFuture = also.write("orders", b"v", key="k", headers=headers, partition=0)
        txn.write("orders", None, key=b"k", headers=[("a", "1"), ("b", None)], timestamp_ms=1)
        txn.write("orders", "v")
        many: stablelog.WriteManyFuture = txn.write_many("orders", [b"a", "b", None], keys=("k", b"l", None))
    print([position.offset for position in many.result(3)], order.exception())
    committed: stablelog.Committed = txn.commit()
    print(committed.commit_sequence, committed.first)
    return order.result()


def read(client: stablelog.Client, after: stablelog.ReadPosition | None) -> Iterator[stablelog.ReadRecord]:
    reader: stablelog.Reader = client.read(["orders"], after=after, wait=1.0)
    transaction: stablelog.CommittedTransaction
    with contextlib.closing(reader):
        for transaction in reader:
            yield from transaction.records
    with contextlib.closing(reader.batches(100, 0.1)) as batches:
        print([len(batch) for batch in batches], reader.position)


def copy(client: stablelog.Client) -> None:
    group: stablelog.GroupReader
    with client.subscribe("orders", group="g") as group, contextlib.closing(group.batches()) as batches:
        for records in batches:
            with client.transaction(offsets_of=group) as txn:
                for record in records:
                    txn.write("copies", record.value, key=record.key, headers=record.headers)
    with contextlib.closing(group):
        print(next(group).offset)


def administer(admin: stablelog.admin.Admin) -> stablelog.admin.TopicDescription:
    made: stablelog.admin.CreatedTopic = admin.topics.create("t", partitions=2)
    found: dict[str, stablelog.admin.Config] = admin.configs.describe("topic", made.name)
    print(found["retention.ms"].source is stablelog.admin.ConfigSource.DEFAULT)
    return admin.topics.describe("t")


async def in_asyncio() -> None:
    async with stablelog.aio.connect("localhost:9092") as client:
        async with client.transaction() as txn:
            order: stablelog.aio.AsyncWriteFuture = await txn.write("orders", b"v", key=b"k")
            many: stablelog.aio.AsyncWriteManyFuture = await txn.write_many("orders", (b"a", "b"))
        print((await order).offset, len(await many))
        async with contextlib.aclosing(client.read("orders")) as reader:
            async for transaction in reader:
                print(transaction.commit_sequence)
        group: stablelog.aio.AsyncGroupReader
        async with contextlib.aclosing(client.subscribe("orders", group="g")) as group:
            async for record in group:
                print(record.key)
        admin: stablelog.aio.AsyncAdmin = client.admin
        await admin.topics.delete("t")
        other: stablelog.aio.AsyncClient = client
        await other.close()


def run() -> None:
    broker: stablelog.EmbeddedBroker
    with stablelog.serve(num_partitions=4) as broker, stablelog.connect(broker.bootstrap) as client:
        write(client, {})
        print(*read(client, None))
        copy(client)
        administer(client.admin)
    try:
        asyncio.run(in_asyncio())
    except stablelog.RefusedError as refused:
        print(refused.code, refused.code_name, stablelog.__version__)


def mistakes(
    client: stablelog.Client, txn: stablelog.Transaction, atxn: stablelog.aio.AsyncTransaction
) -> None:
    stablelog.conect("localhost:9092")  # wrong: maybe "connect"?
    stablelog.aio.conect("localhost:9092")  # wrong: maybe "connect"?
    stablelog.admin.Topics()  # wrong: no attribute "Topics"
    stablelog.spark.sesion()  # wrong: maybe "session"?
    client.transction()  # wrong: maybe "transaction"?
    txn.write("orders", "key", b"value")  # wrong: Too many positional arguments for "write"
    atxn.write("orders", "key", b"value")  # wrong: Too many positional arguments for "write"
    txn.write("orders", key="key")  # wrong: Missing positional argument "value"
    txn.write("orders", 5)  # wrong: incompatible type "int"
    txn.write_many("orders", 5)  # wrong: incompatible type "int"
    txn.write("orders", b"v").cancel()  # wrong: has no attribute "cancel"
    client.read("orders", after=1.5)  # wrong: incompatible type "float"
    client.admin.topics.create("t", partition=2)  # wrong: Unexpected keyword argument "partition"


def misspelt(one: stablelog.Trnsaction) -> None:  # wrong: "stablelog.Trnsaction" is not defined
    pass
