import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * A source connector for Kafka Connect. Each of its tasks writes the numbers from 0 on to the topic `numbers`, under a key of
 * its own, and goes on behind the last number whose offset Connect has stored.
 */
public final class Numbers extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Counting.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maxTasks) {
        List<Map<String, String>> configs = new ArrayList<>();
        for (int task = 0; task < maxTasks; task++) {
            configs.add(Map.of("key", "task-" + task));
        }
        return configs;
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> given) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    @Override
    public void stop() {
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public String version() {
        return "1";
    }

    /** One key, and its next number. */
    public static final class Counting extends SourceTask {
        private static final int BATCH = 5;
        private static final long PAUSE_MS = 20;
        private String key;
        private long next = 0;

        @Override
        public void start(Map<String, String> given) {
            key = given.get("key");
            Map<String, Object> stored = context.offsetStorageReader().offset(Map.of("key", key));
            if (stored != null) {
                next = (Long) stored.get("number") + 1;
            }
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(PAUSE_MS); // so that a test does not write more than it can compare
            List<SourceRecord> records = new ArrayList<>();
            for (long end = next + BATCH; next < end; next++) {
                Map<String, ?> offset = Map.of("number", next);
                records.add(new SourceRecord(Map.of("key", key), offset, "numbers",
                    Schema.STRING_SCHEMA, key, Schema.STRING_SCHEMA, Long.toString(next)));
            }
            return records;
        }

        @Override
        public void stop() {
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
