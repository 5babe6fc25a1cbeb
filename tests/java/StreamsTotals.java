import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.Stores;

/**
 * One instance of a Kafka Streams application that counts the records of `in` exactly once, by the last character of their
 * keys, and writes each count to `totals`. The new key makes Streams send the records through a repartition topic. The
 * counts are in a store with a changelog topic: in memory, or in RocksDB if its jar is on the class path.
 *
 * Each line on standard output is a JSON object: a state of Streams, or the trace of what a thread of Streams has died of.
 * Runs until standard input ends.
 */
public final class StreamsTotals {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("state.dir", arguments[1]);
        settings.put("application.id", "totals");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0"); // so that each count is written
        settings.put("num.standby.replicas", arguments[2]);
        // A killed instance shall be missed, and its transaction be aborted, within seconds.
        settings.put("main.consumer.session.timeout.ms", "6000");
        settings.put("main.consumer.heartbeat.interval.ms", "500");
        settings.put("producer.transaction.timeout.ms", "6000");
        settings.put("metadata.recovery.strategy", "none"); // see docs/guides/from-kafka.md
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        KeyValueBytesStoreSupplier store =
            hasRocksDB() ? Stores.persistentKeyValueStore("counts") : Stores.inMemoryKeyValueStore("counts");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream("in")
            .groupBy((key, value) -> "group-" + key.charAt(key.length() - 1), Grouped.as("by-group"))
            .count(Materialized.<String, Long>as(store))
            .toStream().mapValues(count -> Long.toString(count)).to("totals");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(thrown -> {
            tell("died", trace(thrown));
            return StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT; // as without a handler
        });
        streams.setStateListener((now, before) -> tell("state", now.toString()));
        streams.start();
        while (System.in.read() >= 0) {
            continue;
        }
        streams.close(Duration.ofSeconds(30));
        // The listener may be told after close has returned, and this process ends.
        tell("state", streams.state().toString());
        System.exit(0);
    }

    private static boolean hasRocksDB() {
        return StreamsTotals.class.getClassLoader().getResource("org/rocksdb/RocksDB.class") != null;
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
