package io.kvmessenger.connector;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.transfer.Doorbell;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

/**
 * What other threads have for the messenger: engine commands, frames, link changes. Any thread adds, the messenger's
 * thread drains.
 */
final class Inbox {
    /** Frames of peers that may wait; the link of a peer that sends beyond it is closed. */
    static final int FRAMES_MAX = 8192;

    private final Queue<Consumer<Messenger>> inputs = new ConcurrentLinkedQueue<>();
    private final AtomicInteger frames = new AtomicInteger();
    private final Doorbell doorbell;

    Inbox(Doorbell doorbell) {
        this.doorbell = doorbell;
    }

    void add(Consumer<Messenger> input) {
        inputs.add(input);
        doorbell.ring();
    }

    /** Adds a peer's frame; false, and not added, when too many wait. */
    boolean addFrame(Consumer<Messenger> input) {
        if (frames.incrementAndGet() > FRAMES_MAX) {
            frames.decrementAndGet();
            return false;
        }
        add(messenger -> {
            frames.decrementAndGet();
            input.accept(messenger);
        });
        return true;
    }

    int drainTo(Messenger messenger) {
        int count = 0;
        for (Consumer<Messenger> input = inputs.poll(); input != null; input = inputs.poll()) {
            input.accept(messenger);
            count++;
        }
        return count;
    }
}
