package io.kvmessenger.connector;

import io.kvmessenger.messenger.Messenger;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Consumer;

/**
 * What other threads have for the messenger: engine commands, frames, link changes. Any thread adds, the messenger's
 * thread drains.
 */
final class Inbox {
    /** Inputs taken in one turn, so that neither timers nor completions wait for a peer that never stops talking. */
    static final int INPUTS_PER_TURN_MAX = 1024;

    private final Queue<Consumer<Messenger>> inputs = new ConcurrentLinkedQueue<>();
    private final Runnable wake;

    /** @param wake ends the wait of the messenger's thread */
    Inbox(Runnable wake) {
        this.wake = wake;
    }

    void add(Consumer<Messenger> input) {
        inputs.add(input);
        wake.run();
    }

    /** Inputs that wait. */
    int size() {
        return inputs.size();
    }

    int drainTo(Messenger messenger) {
        int count = 0;
        while (count < INPUTS_PER_TURN_MAX) {
            Consumer<Messenger> input = inputs.poll();
            if (input == null) {
                break;
            }
            input.accept(messenger);
            count++;
        }
        return count;
    }
}
