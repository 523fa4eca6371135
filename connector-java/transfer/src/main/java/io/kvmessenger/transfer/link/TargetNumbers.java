package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.socket.ControlRecord;
import java.util.Arrays;
import java.util.function.IntPredicate;

/**
 * The numbers of a peer's attachments, as the target sees them: which the peer may use next, and which uses are to be
 * confirmed as over, so that the peer may use the number again.
 *
 * <p>Worker only. It does not know what is attached.
 */
final class TargetNumbers {
    private enum State {
        FREE,
        /** The peer has attached, and has not detached yet, whatever has become of the paths. */
        IN_USE,
        /** The peer has detached; its paths may still be ending. */
        DETACHED,
        /** Over; the confirmation has not been sent for lack of room. */
        OWED
    }

    private final State[] states = new State[Attachments.COUNT_MAX];
    private final int[] uses = new int[Attachments.COUNT_MAX];
    /** Numbers from this one on have never been used; the peer takes them in order. */
    private int firstUnused;

    private int owedCount;

    TargetNumbers() {
        Arrays.fill(states, State.FREE);
    }

    /** Takes the number for the peer's attachment; false when it is not one that the peer may use. */
    boolean attach(int number) {
        if (number > firstUnused || number >= states.length || states[number] != State.FREE) {
            return false;
        }
        states[number] = State.IN_USE;
        firstUnused = Math.max(firstUnused, number + 1);
        return true;
    }

    /** Whether the peer has ever used the number. */
    boolean isKnown(int number) {
        return number < firstUnused;
    }

    /** How often the number was used before. */
    int earlierUses(int number) {
        return uses[number];
    }

    /** The peer uses the number's paths no more. */
    void detach(int number) {
        if (states[number] == State.IN_USE) {
            states[number] = State.DETACHED;
        }
    }

    /** Nothing follows about the number's paths; {@link #sendOwed} confirms that once the peer has detached. */
    void end(int number) {
        if (states[number] == State.DETACHED) {
            states[number] = State.OWED;
            owedCount++;
        }
    }

    /** Whether a confirmation has not been sent. */
    boolean owes() {
        return owedCount > 0;
    }

    /**
     * Sends all confirmations that have not been sent.
     *
     * @param send sends a record of the type, if there is room for it now
     */
    void sendOwed(IntPredicate send) {
        for (int number = 0; number < firstUnused && owedCount > 0; number++) {
            if (states[number] == State.OWED) {
                if (!send.test(ControlRecord.type(ControlRecord.RELEASED, number))) {
                    return;
                }
                states[number] = State.FREE;
                uses[number]++;
                owedCount--;
            }
        }
    }
}
