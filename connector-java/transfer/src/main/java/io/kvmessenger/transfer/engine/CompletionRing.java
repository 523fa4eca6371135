package io.kvmessenger.transfer.engine;

import java.util.concurrent.atomic.AtomicLong;

/**
 * SPSC ring of completions, from the worker to the thread that polls; a parallel object array carries rare payloads.
 * Signals the transition from empty to non-empty.
 *
 * <p>One thread pushes, one drains. It cannot overflow: by {@link #size} the causes of further events are held back in
 * time.
 */
final class CompletionRing {
    static final int WRITE_COMPLETED = 0;
    static final int WRITE_FAILED = 1;
    static final int WINDOW_FILLED = 2;
    static final int WINDOW_OVERSHOT = 3;
    static final int PEER_READY = 4;
    static final int PEER_LOST = 5;
    static final int ADMISSION_CLOSED = 6;
    static final int WRITE_REFUSED = 7;
    static final int MESSAGE = 8;
    static final int READ_ASKED = 9;
    static final int READ_ENDED = 10;

    /** Receives drained entries. */
    interface Sink {
        void accept(int kind, long cookie, long value, Object subject, String detail);
    }

    private final int mask;
    private final byte[] kinds;
    private final long[] cookies;
    private final long[] values;
    private final Object[] subjects;
    private final String[] details;
    private final Runnable onFirst;
    private final AtomicLong pushed = new AtomicLong();
    private final AtomicLong drained = new AtomicLong();

    /**
     * @param capacity a power of two
     * @param onFirst run by the worker after a push into an empty ring
     */
    CompletionRing(int capacity, Runnable onFirst) {
        mask = capacity - 1;
        kinds = new byte[capacity];
        cookies = new long[capacity];
        values = new long[capacity];
        subjects = new Object[capacity];
        details = new String[capacity];
        this.onFirst = onFirst;
    }

    int size() {
        return (int) (pushed.getAcquire() - drained.getAcquire());
    }

    int capacity() {
        return mask + 1;
    }

    void push(int kind, long cookie, long value, Object subject, String detail) {
        long position = pushed.getPlain();
        if (position - drained.getAcquire() > mask) {
            throw new AssertionError("the completion ring overflowed: a limit on what causes events does not hold");
        }
        int entry = (int) position & mask;
        kinds[entry] = (byte) kind;
        cookies[entry] = cookie;
        values[entry] = value;
        subjects[entry] = subject;
        details[entry] = detail;
        // Sequentially consistent on both sides: either the drain sees this entry, or we see that it found none.
        pushed.set(position + 1);
        if (drained.get() == position) {
            onFirst.run();
        }
    }

    /** Passes on up to {@code limit} entries. Fewer mean that the ring was empty, so the next push signals. */
    int drain(Sink sink, int limit) {
        int count = 0;
        long position = drained.getPlain();
        while (count < limit && position != pushed.get()) {
            int entry = (int) position & mask;
            Object subject = subjects[entry];
            String detail = details[entry];
            subjects[entry] = null;
            details[entry] = null;
            int kind = kinds[entry];
            long cookie = cookies[entry];
            long value = values[entry];
            drained.set(++position);
            count++;
            sink.accept(kind, cookie, value, subject, detail);
        }
        return count;
    }
}
