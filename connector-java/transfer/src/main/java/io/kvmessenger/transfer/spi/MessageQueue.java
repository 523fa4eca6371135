package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferEngine;
import java.lang.foreign.MemorySegment;
import java.util.concurrent.atomic.AtomicLong;

/** Bounded queue of small messages, copied in and out, from one thread to one other. */
public final class MessageQueue {
    /** Allocated by the first message: most queues never need it. Published with the position. */
    private byte[] bytes;

    private int[] lengthsBytes;
    private final int capacity;
    private final AtomicLong written = new AtomicLong();
    private final AtomicLong released = new AtomicLong();

    public MessageQueue(int capacity) {
        this.capacity = capacity;
    }

    /** Writer: copies the message; false when the queue is full. */
    public boolean offer(MemorySegment message) {
        long position = written.getPlain();
        if (position - released.getAcquire() == capacity) {
            return false;
        }
        if (bytes == null) {
            bytes = new byte[capacity * TransferEngine.MESSAGE_MAX_BYTES];
            lengthsBytes = new int[capacity];
        }
        int slot = (int) (position % capacity);
        int lengthBytes = (int) message.byteSize();
        MemorySegment.copy(message, 0, slot(slot, lengthBytes), 0, lengthBytes);
        lengthsBytes[slot] = lengthBytes;
        written.setRelease(position + 1);
        return true;
    }

    /** Reader: the oldest message, or null; valid until {@link #release}. */
    public MemorySegment peek() {
        long position = released.getPlain();
        if (position == written.getAcquire()) {
            return null;
        }
        int slot = (int) (position % capacity);
        return slot(slot, lengthsBytes[slot]);
    }

    /** Reader: frees the message last peeked. */
    public void release() {
        released.setRelease(released.getPlain() + 1);
    }

    private MemorySegment slot(int slot, int lengthBytes) {
        return MemorySegment.ofArray(bytes).asSlice((long) slot * TransferEngine.MESSAGE_MAX_BYTES, lengthBytes);
    }
}
