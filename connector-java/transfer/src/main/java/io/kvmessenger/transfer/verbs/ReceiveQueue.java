package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.VerbsLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Receive requests for a peer's immediates: each immediate consumes one, which is posted ahead and names no memory.
 *
 * <p>Worker only. While none is posted the peer's device waits and retries; nothing is lost. Allocates nothing after
 * construction.
 */
final class ReceiveQueue {
    private static final int BATCH = 32;

    private final QueuePair pair;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment requests = arena.allocate(BATCH * VerbsLayout.RECV_WR_SIZE_BYTES, 8);
    private final MemorySegment refused = arena.allocate(JAVA_LONG);
    private int posted;
    private int used;

    /**
     * Posts as many requests as may be in flight.
     *
     * @throws IllegalStateException when the device refuses
     */
    ReceiveQueue(QueuePair pair, int depth) {
        this.pair = pair;
        for (int i = 0; i < BATCH; i++) {
            link(i);
        }
        used = depth;
        try {
            refill();
            while (used > 0) {
                post(1);
            }
        } catch (IllegalStateException e) {
            arena.close();
            throw e;
        }
    }

    private void link(int i) {
        long at = i * VerbsLayout.RECV_WR_SIZE_BYTES;
        requests.set(
                JAVA_LONG, at + VerbsLayout.RECV_WR_NEXT, requests.address() + at + VerbsLayout.RECV_WR_SIZE_BYTES);
    }

    /** Replaces consumed requests, in batches. */
    void refill() {
        while (used >= BATCH) {
            post(BATCH);
        }
    }

    private void post(int count) {
        long last = (count - 1) * VerbsLayout.RECV_WR_SIZE_BYTES;
        requests.set(JAVA_LONG, last + VerbsLayout.RECV_WR_NEXT, 0);
        int result = pair.postReceive(requests.address(), refused);
        link(count - 1);
        if (result < 0) {
            throw new IllegalStateException("ibv_post_recv on " + pair.device() + ": " + Errno.name(-result));
        }
        posted += count;
        used -= count;
    }

    /** A request was consumed, by an immediate or by the end of the queue pair. */
    void take() {
        posted--;
        used++;
    }

    /** Whether the queue pair has returned all requests. */
    boolean isEmpty() {
        return posted == 0;
    }

    /** Releases the memory; the queue pair is closed. */
    void close() {
        arena.close();
    }
}
