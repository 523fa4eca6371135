package io.kvmessenger.connector;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.NanoClock;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Consumer;

/**
 * Inputs for the messenger from other threads: engine commands, frames, link changes. Any thread adds, the messenger's
 * thread drains.
 */
final class Inbox {
    /** Inputs processed in one duty cycle, so that a peer that never stops sending delays no timer or completion. */
    static final int INPUTS_PER_CYCLE_MAX = 1024;
    /** Time after which a duty cycle takes no further input: grants and fetches of long prompts take 1 ms each. */
    static final long TAKING_MAX_NS = 20_000_000L;

    private final Queue<Consumer<Messenger>> inputs = new ConcurrentLinkedQueue<>();
    private final NanoClock clock;
    private final Runnable wake;

    /** @param wake ends the wait of the messenger's thread */
    Inbox(NanoClock clock, Runnable wake) {
        this.clock = clock;
        this.wake = wake;
    }

    void add(Consumer<Messenger> input) {
        inputs.add(input);
        wake.run();
    }

    int size() {
        return inputs.size();
    }

    int drainTo(Messenger messenger) {
        int count = 0;
        long beganNs = clock.nowNs();
        while (count < INPUTS_PER_CYCLE_MAX && clock.nowNs() - beganNs < TAKING_MAX_NS) {
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
