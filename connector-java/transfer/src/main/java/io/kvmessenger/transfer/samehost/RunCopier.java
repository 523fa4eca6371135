package io.kvmessenger.transfer.samehost;

import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.StreamingCopy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Objects;

/**
 * Copies the runs of a batch into a peer's memory: four at a time with non-temporal stores if the machine supports it,
 * else one by one.
 *
 * <p>A run may be copied later than it is added, up to {@link #finish}; no store after that becomes visible before the
 * copied bytes. One thread. It keeps no memory alive.
 */
public final class RunCopier {
    /** Shorter runs are copied at once: the address arithmetic would cost more than it gains. */
    static final long STREAMED_RUN_MIN_BYTES = 1 << 10;
    /** The rest of a run with no others for the lanes is split into four from this length on, else copied at once. */
    static final long CUT_MIN_BYTES = 16 << 10;

    private static final long CACHE_LINE_BYTES = 64;
    private static final int LANES = StreamingCopy.LANES;

    private final StreamingCopy streaming;
    private final MemorySegment addresses;
    private final long[] sources = new long[LANES];
    private final long[] targets = new long[LANES];
    private final long[] lengths = new long[LANES];
    private int lanes;

    /** @param streaming null if the machine does not support it */
    public RunCopier(StreamingCopy streaming) {
        this.streaming = streaming;
        addresses = Arena.ofAuto().allocate(StreamingCopy.ADDRESSES_BYTES, Long.BYTES);
    }

    public void add(
            MemorySegment source, long sourceOffset, MemorySegment target, long targetOffset, long lengthBytes) {
        if (streaming == null || lengthBytes < STREAMED_RUN_MIN_BYTES) {
            MemorySegment.copy(source, sourceOffset, target, targetOffset, lengthBytes);
            return;
        }
        long from = addressIn(source, sourceOffset, lengthBytes);
        long to = addressIn(target, targetOffset, lengthBytes);
        long head = -to & (CACHE_LINE_BYTES - 1);
        ForeignMemory.copy(from, to, head);
        enter(from + head, to + head, lengthBytes - head);
        if (lanes == LANES) {
            stream();
        }
    }

    /** Copies the waiting runs. */
    public void finish() {
        for (int lane = 0; lane < lanes; lane++) {
            copyAlone(sources[lane], targets[lane], lengths[lane]);
        }
        lanes = 0;
    }

    /** Drops the waiting runs. */
    public void drop() {
        lanes = 0;
    }

    private void enter(long source, long target, long lengthBytes) {
        sources[lanes] = source;
        targets[lanes] = target;
        lengths[lanes++] = lengthBytes;
    }

    /** Copies the lanes in parallel until the shortest run is done; the rest of the others waits. */
    private void stream() {
        long lengthBytes = lengths[0];
        for (int lane = 0; lane < LANES; lane++) {
            lengthBytes = Math.min(lengthBytes, lengths[lane]);
            setLane(lane, sources[lane], targets[lane]);
        }
        copySteps(lengthBytes);
        long done = wholeSteps(lengthBytes);
        lanes = 0;
        for (int lane = 0; lane < LANES; lane++) {
            long from = sources[lane] + done;
            long to = targets[lane] + done;
            long left = lengths[lane] - done;
            if (left < StreamingCopy.STEP_BYTES) {
                ForeignMemory.copy(from, to, left);
            } else {
                enter(from, to, left);
            }
        }
    }

    /** Copies a run without others alongside. */
    private void copyAlone(long source, long target, long lengthBytes) {
        long copied = 0;
        if (lengthBytes >= CUT_MIN_BYTES) {
            long quarter = wholeSteps(lengthBytes / LANES);
            for (int lane = 0; lane < LANES; lane++) {
                setLane(lane, source + lane * quarter, target + lane * quarter);
            }
            copySteps(quarter);
            copied = LANES * quarter;
        }
        ForeignMemory.copy(source + copied, target + copied, lengthBytes - copied);
    }

    /** Copies {@code lengthBytes} of each lane, in whole steps. */
    private void copySteps(long lengthBytes) {
        long left = wholeSteps(lengthBytes);
        while (left > 0) {
            long now = Math.min(left, StreamingCopy.LENGTH_MAX_BYTES);
            streaming.copy(addresses, now);
            left -= now;
            for (int i = 0; left > 0 && i < 2 * LANES; i++) {
                long address = addresses.getAtIndex(ValueLayout.JAVA_LONG, i);
                addresses.setAtIndex(ValueLayout.JAVA_LONG, i, address + now);
            }
        }
    }

    private void setLane(int lane, long source, long target) {
        addresses.setAtIndex(ValueLayout.JAVA_LONG, lane, source);
        addresses.setAtIndex(ValueLayout.JAVA_LONG, LANES + lane, target);
    }

    private static long wholeSteps(long lengthBytes) {
        return lengthBytes & -StreamingCopy.STEP_BYTES;
    }

    /** Bounds check and address, once per run, as a copy between segments would do. */
    private static long addressIn(MemorySegment segment, long offset, long lengthBytes) {
        if (!segment.scope().isAlive() || !segment.isNative()) {
            throw new IllegalStateException("the memory is closed, or is not native: " + segment);
        }
        return segment.address() + Objects.checkFromIndexSize(offset, lengthBytes, segment.byteSize());
    }
}
