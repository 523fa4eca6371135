package io.kvmessenger.messenger;

import io.kvmessenger.messenger.session.Subject;
import io.kvmessenger.transfer.CompletionHandler;
import java.util.List;

/**
 * A {@link Subject} as the messenger's duty cycle serves it: its share of a cycle, of completions, of the end.
 *
 * <p>Called by the messenger's thread.
 */
public interface ServedSubject extends Subject {
    /** A part of the duty cycle. Parts are isolated: an exception in one does not keep the others from running. */
    interface Duty {
        /** Returns the amount of work done. */
        int run(long nowNs);
    }

    /** Its parts of the duty cycle, in order; asked for once. */
    List<Duty> duties();

    /** Receives what the transfer engine has completed; asked for once. */
    CompletionHandler completions();

    /** The next moment at which one of its duties has something to do without any input. */
    long nextDeadlineNs(long nowNs);

    /** Whether something outside the messenger is awaited that should be polled closely. */
    default boolean watching() {
        return false;
    }

    /** Accepts nothing new; stops or cancels what cannot be finished without further input. */
    void shutDown(String reason);

    /** After {@link #shutDown}: whether nothing is left to finish. */
    boolean finished();

    /** The transfer engine has ended, and all sessions have: nothing is in flight, and no completion will follow. */
    void onTransferEnded(String reason);

    /** No peer is heard any more, and all sessions have ended: what is asked from now on is answered at once. */
    default void onControlEnded(String reason) {}

    /** Whether it has received any input since its gauges were last published. */
    boolean changed();

    /** Sets the gauges of what it holds. */
    void publishGauges();
}
