import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LocalTieredStorage;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * LocalTieredStorage that appends one line to a file for each read request, before it answers the request.
 *
 * <p>The line has the topic, the base offset of the segment, the kind of the requested object, and "found" or
 * "missing". The setting "requests" is the path of the file.
 */
public final class CountingStorage implements RemoteStorageManager {
    private final LocalTieredStorage storage = new LocalTieredStorage();
    private Path requests;

    private interface Read {
        InputStream open() throws RemoteStorageException;
    }

    @Override
    public void configure(Map<String, ?> settings) {
        requests = Path.of((String) settings.get("requests"));
        storage.configure(settings);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return counted(segment, "SEGMENT", () -> storage.fetchLogSegment(segment, start));
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
            throws RemoteStorageException {
        return counted(segment, "SEGMENT", () -> storage.fetchLogSegment(segment, start, end));
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType kind) throws RemoteStorageException {
        return counted(segment, kind.name(), () -> storage.fetchIndex(segment, kind));
    }

    private InputStream counted(RemoteLogSegmentMetadata segment, String kind, Read read)
            throws RemoteStorageException {
        try {
            InputStream content = read.open();
            count(segment, kind, "found");
            return content;
        } catch (RemoteResourceNotFoundException missing) {
            count(segment, kind, "missing");
            throw missing;
        }
    }

    private synchronized void count(RemoteLogSegmentMetadata segment, String kind, String result) {
        String topic = segment.remoteLogSegmentId().topicIdPartition().topic();
        String line = String.join(" ", topic, Long.toString(segment.startOffset()), kind, result) + "\n";
        try {
            Files.writeString(requests, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }

    @Override
    public Optional<RemoteLogSegmentMetadata.CustomMetadata> copyLogSegmentData(
            RemoteLogSegmentMetadata segment, LogSegmentData files) throws RemoteStorageException {
        return storage.copyLogSegmentData(segment, files);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        storage.deleteLogSegmentData(segment);
    }

    @Override
    public void close() {
        storage.close();
    }
}
