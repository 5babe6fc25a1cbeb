import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/** Prints, in hexadecimal, records of a remote segment as Kafka's own serializer writes them: one of each kind. */
public class TierRecords {
    public static void main(String[] arguments) {
        long nowMs = 1_700_000_000_000L;
        Uuid topicId = new Uuid(0x0102030405060708L, 0x1112131415161718L);
        Uuid id = new Uuid(0x2122232425262728L, 0x3132333435363738L);
        TopicIdPartition partition = new TopicIdPartition(topicId, new TopicPartition("t", 3));
        RemoteLogSegmentId segmentId = new RemoteLogSegmentId(partition, id);
        Map<Integer, Long> epochs = new TreeMap<>(Map.of(5, 100L, 7, 150L));
        RemoteLogSegmentMetadata started =
            new RemoteLogSegmentMetadata(segmentId, 100, 199, nowMs, 1, nowMs + 1, 1 << 20, epochs);
        RemoteLogSegmentMetadataUpdate finished = new RemoteLogSegmentMetadataUpdate(
            segmentId, nowMs + 2, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1);
        print(started);
        print(finished);
        print(new RemotePartitionDeleteMetadata(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, nowMs + 3, 1));
        print(RemoteLogSegmentMetadataSnapshot.create(started.createWithUpdates(finished)));
    }

    private static void print(RemoteLogMetadata record) {
        System.out.println(HexFormat.of().formatHex(new RemoteLogMetadataSerde().serialize(record)));
    }
}
