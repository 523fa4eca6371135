package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.MessageQueue;
import java.lang.invoke.VarHandle;

/**
 * Whether a duty cycle may pass a peer by: nothing of it is queued or under way, so that only something new, a lost
 * path or time gives it work.
 *
 * <p>{@link #stir} from any thread, everything else by the worker, which visits a peer at rest at intervals all the
 * same. It looks at what the messenger queues, and not at sockets or memory.
 */
final class PeerRest {
    private final PeerWrites writes;
    private final MessageQueue messages;
    private final MessageQueue answers;
    private volatile boolean stirred;
    private boolean resting;

    PeerRest(PeerWrites writes, MessageQueue messages, MessageQueue answers) {
        this.writes = writes;
        this.messages = messages;
        this.answers = answers;
    }

    /** After something has been queued for the peer. */
    void stir() {
        stirred = true;
    }

    boolean isOn() {
        return resting && !stirred;
    }

    /** A visit begins. */
    void end() {
        resting = false;
        if (stirred) {
            stirred = false;
            VarHandle.fullFence(); // the queues are read after that: what is queued later stirs again
        }
    }

    /** A visit is over: rest begins if it has left nothing. */
    void beginIf(boolean idle) {
        resting = idle && writes.haveEnded() && messages.peek() == null && answers.peek() == null;
    }
}
