"""Kafka's clients against a running broker.

The test suites of other projects ran against a broker, unchanged. To run them again, with ADDRESS as that of the broker:

- franz-go: `go mod download github.com/twmb/franz-go@v1.22.3`, and `KGO_SEEDS=ADDRESS KGO_TEST_RF=1 go test ./pkg/kgo`
  in a copy of the module. The skipped tests need share groups (5), SASL (3), or a broker without Produce v2 (1).
- librdkafka: the crate `rdkafka-sys` 4.10.0+2.12.1, and a broker with `num.partitions=4`. `./configure && make`, and
  `make build` in `tests`. Then `TEST_KAFKA_VERSION=4.1.0 BROKERS=ADDRESS KAFKA_PATH=FOLDER ./test-runner -p1`, with
  `metadata.broker.list=ADDRESS` in `test.conf`. `FOLDER/bin/kafka-topics.sh` creates a topic with the options that it
  gets; that of Kafka 4 refuses the `segment.bytes` of 0077. The skipped tests need TLS or SASL (4), RapidJSON (4),
  another group protocol (4), version 1 messages (1), or are never run by default (3). Of the failed ones, 0109, 0115 and
  0119 add ACLs, 0103 creates topics with three replicas, and the subtests of 0081 use ACLs, users or other settings.
  0086 has a limit of 100 ms and needs an idle machine.
- kafka-python: the sdist at PyPI, and a broker with `num.partitions=4`, `node.id=0`,
  `group.min.session.timeout.ms=500` and `advertised.listeners=PLAINTEXT://ADDRESS`. `KAFKA_VERSION=4.2.0
  KAFKA_URI=kafka://ADDRESS pytest test/integration --ignore=test/integration/test_ssl_integration.py`. The sdist lacks
  `test/__init__.py`, which may be empty, and `test/service.py` with the classes `ExternalService` and `SpawnedService`,
  which keep a host and a port. The folder `servers/4.2.0/kafka-bin` has to exist. The skipped tests need SASL or an
  older Kafka, the failed ones ACLs and the quorum of KRaft.
"""
