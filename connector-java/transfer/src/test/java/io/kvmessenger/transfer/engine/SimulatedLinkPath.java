package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.ArrayDeque;

/**
 * A data socket in simulated time: a frame is handed to the socket's buffer as far as it may, and the link takes the
 * buffer's bytes in order.
 */
final class SimulatedLinkPath implements Endpoint {
    private static final long FRAME_BYTES = 1 << 20;
    private static final long BUFFER_BYTES = 4 << 20;
    /** A socket takes so much at once. */
    static final long STEP_BYTES = 16 << 10;

    /** A frame whose last byte is {@code endBytes} into all that the path has handed over. */
    private record Frame(long postId, long endBytes) {}

    private final ArrayDeque<Frame> frames = new ArrayDeque<>();
    private long frameLeftBytes;
    private long handedBytes;
    private long takenBytes;
    private long pacedBytes;
    private long allowedBytes = Long.MAX_VALUE;
    private long unsentLimitBytes = Long.MAX_VALUE;
    /** Faults: it hands over, or buffers, whatever it has. */
    private final boolean unpaced;

    private final boolean unlimited;

    SimulatedLinkPath(boolean unpaced, boolean unlimited) {
        this.unpaced = unpaced;
        this.unlimited = unlimited;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (frameLeftBytes > 0) {
            return 0;
        }
        int taken = batch.limit(Integer.MAX_VALUE, FRAME_BYTES, Long.MAX_VALUE);
        frameLeftBytes = batch.payloadBytes();
        frames.add(new Frame(postId, handedBytes + frameLeftBytes));
        return taken;
    }

    @Override
    public long pace(long lengthBytes) {
        long given = handedBytes - pacedBytes;
        pacedBytes = handedBytes;
        allowedBytes = unpaced || lengthBytes == Long.MAX_VALUE ? Long.MAX_VALUE : handedBytes + lengthBytes;
        return given;
    }

    @Override
    public void limitUnsent(long lengthBytes) {
        unsentLimitBytes = unlimited ? Long.MAX_VALUE : lengthBytes;
    }

    /** Hands over what it may; as a socket does, it stops only once a limit is reached. */
    void handOver() {
        while (frameLeftBytes > 0
                && handedBytes < allowedBytes
                && waitingBytes() < Math.min(unsentLimitBytes, BUFFER_BYTES)) {
            long bytes = Math.min(frameLeftBytes, STEP_BYTES);
            frameLeftBytes -= bytes;
            handedBytes += bytes;
        }
    }

    /** Bytes that wait for the link. */
    long waitingBytes() {
        return handedBytes - takenBytes;
    }

    /** The link takes bytes. */
    void take(long lengthBytes) {
        takenBytes += lengthBytes;
    }

    /** The id of a post that the link has taken as a whole, or -1 when there is none. */
    long nextSent() {
        Frame first = frames.peek();
        return first != null && first.endBytes <= takenBytes ? frames.remove().postId : -1;
    }
}
