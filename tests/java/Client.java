import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/** Apache Kafka's Java client, driven by lines of JSON on standard input and answering by lines of JSON. */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    private static final Duration TIMEOUT = Duration.ofSeconds(30);
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Map<String, KafkaConsumer<byte[], byte[]>> consumers = new HashMap<>();
    private final Map<String, Admin> admins = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(new PrintStream(PRINTED, true)); // what Kafka's tools print
        Exit.setExitProcedure((status, message) -> { throw new Ended(status); });
        Client client = new Client();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("result", client.answer(JSON.readTree(line)));
            } catch (Throwable thrown) {
                Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private Object answer(JsonNode ask) throws Exception {
        switch (ask.get("do").asText()) {
            case "producer": return openProducer(ask);
            case "send": return send(ask);
            case "send_each": return sendEach(ask);
            case "begin": producer(ask).beginTransaction(); return null;
            case "offsets": return sendOffsets(ask);
            case "commit": producer(ask).commitTransaction(); return null;
            case "abort": producer(ask).abortTransaction(); return null;
            case "close": producers.remove(ask.get("name").asText()).close(TIMEOUT); return null;
            case "read": return read(ask);
            case "consumer": return openConsumer(ask);
            case "poll": return poll(ask);
            case "tool": return runTool(ask);
            case "property": System.setProperty(ask.get("name").asText(), ask.get("value").asText()); return null;
            case "leave": consumers.remove(ask.get("name").asText()).close(TIMEOUT); return null;
            default: return administer(ask, admin(ask));
        }
    }

    // -- tools -------------------------------------------------------------------------------------------------

    /** A tool has called for the end of the process. Some catch it and call again: the first time counts. */
    private static final class Ended extends RuntimeException {
        private static Integer status;

        private Ended(int asked) {
            status = status == null ? Integer.valueOf(asked) : status;
        }
    }

    /** Runs one of Kafka's commands in this process: what it prints. */
    private Object runTool(JsonNode ask) throws Exception {
        List<String> arguments = new ArrayList<>();
        ask.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        PRINTED.reset();
        Ended.status = null;
        try {
            Class.forName(ask.get("class").asText()).getMethod("main", String[].class)
                .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                throw thrown;
            }
        }
        if (Ended.status != null && Ended.status != 0) {
            throw new IllegalStateException("status " + Ended.status + ": " + PRINTED);
        }
        return PRINTED.toString();
    }

    // -- producers ---------------------------------------------------------------------------------------------

    private KafkaProducer<byte[], byte[]> producer(JsonNode ask) {
        return producers.get(ask.get("name").asText());
    }

    private Object openProducer(JsonNode ask) {
        Properties settings = settings(ask);
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        if (settings.containsKey("transactional.id")) {
            producer.initTransactions();
        }
        producers.put(ask.get("name").asText(), producer);
        return null;
    }

    /** Sends values and waits for them: [partition, offset] of each. */
    private Object send(JsonNode ask) throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        Integer partition = ask.has("partition") ? ask.get("partition").asInt() : null;
        for (JsonNode value : ask.get("values")) {
            byte[] key = ask.has("key") ? bytes(ask.get("key")) : null;
            futures.add(producer(ask).send(new ProducerRecord<>(ask.get("topic").asText(), partition, key, bytes(value))));
        }
        producer(ask).flush();
        List<List<Long>> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) {
            offsets.add(List.of((long) future.get().partition(), future.get().offset()));
        }
        return offsets;
    }

    /** Sends a record for each key, all in one batch if they fit: for each null, or the exception of its future. */
    private Object sendEach(JsonNode ask) throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (JsonNode key : ask.get("keys")) {
            byte[] value = new byte[0];
            futures.add(producer(ask).send(new ProducerRecord<>(ask.get("topic").asText(), 0, bytes(key), value)));
        }
        producer(ask).flush();
        List<String> thrown = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) {
            try {
                future.get();
                thrown.add(null);
            } catch (ExecutionException failed) {
                thrown.add(failed.getCause().getClass().getSimpleName() + ": " + failed.getCause().getMessage());
            }
        }
        return thrown;
    }

    private Object sendOffsets(JsonNode ask) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode row : ask.get("offsets")) {
            offsets.put(partition(row), new OffsetAndMetadata(row.get(2).asLong()));
        }
        ConsumerGroupMetadata group = ask.has("consumer")
            ? consumers.get(ask.get("consumer").asText()).groupMetadata()
            : new ConsumerGroupMetadata(ask.get("group").asText());
        producer(ask).sendOffsetsToTransaction(offsets, group);
        return null;
    }

    // -- consumers ---------------------------------------------------------------------------------------------

    /** Reads a partition from each of several offsets up to its end: a list of records for each. */
    private Object read(JsonNode ask) {
        List<List<Object>> answers = new ArrayList<>();
        TopicPartition at = new TopicPartition(ask.get("topic").asText(), ask.get("partition").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings(ask), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(at));
            long end = consumer.endOffsets(List.of(at), TIMEOUT).get(at);
            for (JsonNode start : ask.get("starts")) {
                List<Object> records = new ArrayList<>();
                consumer.seek(at, start.asLong());
                long deadline = System.nanoTime() + TIMEOUT.toNanos();
                while (consumer.position(at, TIMEOUT) < end) {
                    if (System.nanoTime() > deadline) {
                        throw new IllegalStateException("nothing comes at " + consumer.position(at) + " of " + end);
                    }
                    consumer.poll(Duration.ofMillis(500)).forEach(record -> records.add(shown(record)));
                }
                answers.add(records);
            }
        }
        return answers;
    }

    private Object openConsumer(JsonNode ask) {
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings(ask), new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<String> topics = new ArrayList<>();
        ask.get("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics);
        consumers.put(ask.get("name").asText(), consumer);
        return null;
    }

    /** Polls once: which partitions a member has, and what it got. */
    private Object poll(JsonNode ask) {
        KafkaConsumer<byte[], byte[]> consumer = consumers.get(ask.get("name").asText());
        List<Object> records = new ArrayList<>();
        consumer.poll(Duration.ofMillis(ask.get("ms").asLong())).forEach(record -> records.add(shown(record)));
        List<List<Object>> assigned = new ArrayList<>();
        consumer.assignment().forEach(at -> assigned.add(List.of(at.topic(), at.partition())));
        if (ask.path("commit").asBoolean()) {
            consumer.commitSync(TIMEOUT);
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("assigned", assigned);
        answer.put("records", records);
        answer.put("member", consumer.groupMetadata().memberId());
        answer.put("generation", consumer.groupMetadata().generationId());
        return answer;
    }

    private static List<Object> shown(ConsumerRecord<byte[], byte[]> record) {
        List<Object> fields = new ArrayList<>();
        fields.add(record.offset());
        fields.add(record.timestamp());
        fields.add(record.key());
        fields.add(record.value());
        List<Object> headers = new ArrayList<>();
        record.headers().forEach(header -> {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(header.value());
            headers.add(pair);
        });
        fields.add(headers);
        fields.add(record.partition());
        return fields;
    }

    // -- administration ----------------------------------------------------------------------------------------

    private Admin admin(JsonNode ask) {
        return admins.computeIfAbsent(ask.get("settings").get("bootstrap.servers").asText(), address -> Admin.create(settings(ask)));
    }

    private Object administer(JsonNode ask, Admin admin) throws Exception {
        switch (ask.get("do").asText()) {
            case "create_topic": {
                NewTopic topic = new NewTopic(ask.get("topic").asText(), Optional.of(ask.get("partitions").asInt()), Optional.empty());
                admin.createTopics(List.of(topic.configs(texts(ask.path("configs"))))).all().get();
                return null;
            }
            case "create_partitions":
                admin.createPartitions(Map.of(ask.get("topic").asText(), NewPartitions.increaseTo(ask.get("partitions").asInt()))).all().get();
                return null;
            case "delete_topic": admin.deleteTopics(Set.of(ask.get("topic").asText())).all().get(); return null;
            case "list_topics": return new ArrayList<>(admin.listTopics().names().get());
            case "describe_topic": {
                var topic = admin.describeTopics(Set.of(ask.get("topic").asText())).allTopicNames().get().get(ask.get("topic").asText());
                return List.of(topic.topicId().toString(), topic.partitions().size(), topic.partitions().get(0).leader().id());
            }
            case "describe_cluster": {
                var cluster = admin.describeCluster();
                return List.of(cluster.clusterId().get(), cluster.nodes().get().size(), cluster.controller().get().id());
            }
            case "describe_features": {
                Map<String, Object> levels = new TreeMap<>();
                admin.describeFeatures().featureMetadata().get().finalizedFeatures()
                    .forEach((name, range) -> levels.put(name, (int) range.maxVersionLevel()));
                return levels;
            }
            case "alter_config": {
                List<AlterConfigOp> operations = new ArrayList<>();
                texts(ask.get("configs")).forEach((name, value) ->
                    operations.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
                admin.incrementalAlterConfigs(Map.of(resource(ask), (Collection<AlterConfigOp>) operations)).all().get();
                return null;
            }
            case "describe_config": {
                Map<String, String> values = new TreeMap<>();
                admin.describeConfigs(Set.of(resource(ask))).all().get().get(resource(ask)).entries()
                    .forEach(entry -> values.put(entry.name(), entry.value()));
                return values;
            }
            case "list_offsets": {
                TopicPartition at = partition(ask.get("at"));
                OffsetSpec spec = switch (ask.get("spec").asText()) {
                    case "earliest" -> OffsetSpec.earliest();
                    case "latest" -> OffsetSpec.latest();
                    case "max_timestamp" -> OffsetSpec.maxTimestamp();
                    default -> OffsetSpec.forTimestamp(ask.get("spec").asLong());
                };
                IsolationLevel isolation = ask.get("committed").asBoolean() ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
                return admin.listOffsets(Map.of(at, spec), new ListOffsetsOptions(isolation)).partitionResult(at).get().offset();
            }
            case "delete_records": {
                TopicPartition at = partition(ask.get("at"));
                return admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(ask.get("at").get(2).asLong())))
                    .lowWatermarks().get(at).get().lowWatermark();
            }
            default: return administerMore(ask, admin);
        }
    }

    private Object administerMore(JsonNode ask, Admin admin) throws Exception {
        switch (ask.get("do").asText()) {
            case "list_transactions": {
                List<List<Object>> rows = new ArrayList<>();
                ListTransactionsOptions options = new ListTransactionsOptions();
                if (ask.has("longer_than_ms")) {
                    options.filterOnDuration(ask.get("longer_than_ms").asLong());
                }
                admin.listTransactions(options).all().get()
                    .forEach(row -> rows.add(List.of(row.transactionalId(), row.producerId(), row.state().toString())));
                return rows;
            }
            case "describe_transaction": {
                var found = admin.describeTransactions(Set.of(ask.get("id").asText())).description(ask.get("id").asText()).get();
                Map<String, Object> answer = new LinkedHashMap<>();
                answer.put("state", found.state().toString());
                answer.put("producer_id", found.producerId());
                answer.put("producer_epoch", found.producerEpoch());
                answer.put("timeout_ms", found.transactionTimeoutMs());
                List<List<Object>> partitions = new ArrayList<>();
                found.topicPartitions().forEach(at -> partitions.add(List.of(at.topic(), at.partition())));
                answer.put("partitions", partitions);
                return answer;
            }
            case "describe_producers": {
                TopicPartition at = partition(ask.get("at"));
                List<Map<String, Object>> rows = new ArrayList<>();
                admin.describeProducers(Set.of(at)).partitionResult(at).get().activeProducers().forEach(producer -> {
                    Map<String, Object> row = new LinkedHashMap<>();
                    row.put("producer_id", producer.producerId());
                    row.put("producer_epoch", producer.producerEpoch());
                    row.put("last_sequence", producer.lastSequence());
                    row.put("coordinator_epoch", producer.coordinatorEpoch().orElse(-1));
                    row.put("open_since", producer.currentTransactionStartOffset().isPresent()
                        ? producer.currentTransactionStartOffset().getAsLong() : null);
                    rows.add(row);
                });
                return rows;
            }
            case "abort_transaction": {
                AbortTransactionSpec spec = new AbortTransactionSpec(partition(ask.get("at")), ask.get("producer_id").asLong(),
                    (short) ask.get("producer_epoch").asInt(), ask.get("coordinator_epoch").asInt());
                admin.abortTransaction(spec).all().get();
                return null;
            }
            case "fence_producers": admin.fenceProducers(Set.of(ask.get("id").asText())).all().get(); return null;
            case "committed": {
                TopicPartition at = partition(ask.get("at"));
                OffsetAndMetadata found = admin.listConsumerGroupOffsets(ask.get("group").asText()).partitionsToOffsetAndMetadata().get().get(at);
                return found == null ? null : found.offset();
            }
            case "list_groups": {
                List<String> names = new ArrayList<>();
                admin.listConsumerGroups().all().get().forEach(group -> names.add(group.groupId()));
                return names;
            }
            case "describe_group": {
                var group = admin.describeConsumerGroups(Set.of(ask.get("group").asText())).all().get().get(ask.get("group").asText());
                return List.of(group.groupState().toString(), group.members().size(), group.partitionAssignor());
            }
            case "delete_group": admin.deleteConsumerGroups(Set.of(ask.get("group").asText())).all().get(); return null;
            default: throw new IllegalArgumentException("cannot " + ask.get("do"));
        }
    }

    // -- values ------------------------------------------------------------------------------------------------

    private static Properties settings(JsonNode ask) {
        Properties settings = new Properties();
        settings.putAll(texts(ask.get("settings")));
        return settings;
    }

    private static Map<String, String> texts(JsonNode node) {
        Map<String, String> found = new HashMap<>();
        if (node instanceof ObjectNode) {
            node.fields().forEachRemaining(field -> found.put(field.getKey(), field.getValue().asText()));
        }
        return found;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static TopicPartition partition(JsonNode row) {
        return new TopicPartition(row.get(0).asText(), row.get(1).asInt());
    }

    private static ConfigResource resource(JsonNode ask) {
        return new ConfigResource(ConfigResource.Type.TOPIC, ask.get("topic").asText());
    }
}
