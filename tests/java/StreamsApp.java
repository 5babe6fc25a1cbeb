import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams, which shuts down after an uncaught exception as it does by default, and a consumer of what it writes. Streams
 * counts the records of `in` by key, exactly once, and writes each count to `out`. Each line on standard output is a JSON
 * object: a state of Streams, the records of a poll as [key, count], what poll() has thrown, or the trace of what a thread of
 * Streams has died of. Runs until standard input ends.
 */
public final class StreamsApp {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static volatile boolean stopping = false;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("state.dir", arguments[1]);
        settings.put("application.id", "counting");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0"); // so that each count is written
        // By default a client forgets its metadata if it cannot connect to any broker that it knows. It may do so while it
        // assigns tasks, and Streams then ends for lack of its source topics. See docs/guides/from-kafka.md.
        settings.put("metadata.recovery.strategy", "none");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream("in").groupByKey()
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")))
            .toStream().to("out", Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(thrown -> {
            tell("died", trace(thrown));
            return StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT; // as without a handler
        });
        streams.setStateListener((now, before) -> tell("state", now.toString()));
        Thread reader = new Thread(() -> read(arguments[0]));
        reader.start();
        streams.start();
        while (System.in.read() >= 0) {
            continue;
        }
        stopping = true;
        reader.join();
        streams.close(Duration.ofSeconds(30));
        // The listener may be told after close has returned, and this process ends.
        tell("state", streams.state().toString());
        System.exit(0);
    }

    private static void read(String bootstrap) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        try (KafkaConsumer<String, Long> consumer =
                 new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor("out").forEach(info -> partitions.add(new TopicPartition(info.topic(), info.partition())));
            consumer.assign(partitions);
            while (!stopping) {
                try {
                    List<List<Object>> records = new ArrayList<>();
                    for (ConsumerRecord<String, Long> record : consumer.poll(Duration.ofMillis(200))) {
                        records.add(List.of(record.key(), record.value()));
                    }
                    if (!records.isEmpty()) {
                        tell("polled", records);
                    }
                } catch (RuntimeException thrown) {
                    tell("thrown", thrown.toString());
                }
            }
        }
    }

    private static String trace(Throwable thrown) {
        StringWriter text = new StringWriter();
        thrown.printStackTrace(new PrintWriter(text));
        return text.toString();
    }

    private static synchronized void tell(String what, Object value) {
        try {
            System.out.println(JSON.writeValueAsString(Map.of(what, value)));
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
