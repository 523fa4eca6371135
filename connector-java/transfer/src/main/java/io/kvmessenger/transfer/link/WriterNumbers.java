package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.socket.ControlRecord;
import java.util.ArrayDeque;
import java.util.function.IntPredicate;

/**
 * The numbers of a writer's attachments: each is used again once the target has confirmed that nothing follows about
 * its previous use. A target of the previous version confirms nothing, so each number serves once there.
 *
 * <p>Worker only. It does not know what is attached.
 */
final class WriterNumbers {
    static final int NONE = -1;

    private enum State {
        UNUSED,
        IN_USE,
        /** Its detachment has not been sent for lack of room. */
        OWED,
        /** The target's confirmation is pending. */
        DETACHED
    }

    private final State[] states = new State[Attachments.COUNT_MAX];
    private final int[] uses = new int[Attachments.COUNT_MAX];
    /** The number freed first is used first, so that each rests as long as possible. */
    private final ArrayDeque<Integer> free = new ArrayDeque<>();

    private int owedCount;

    WriterNumbers() {
        for (int number = 0; number < states.length; number++) {
            states[number] = State.UNUSED;
            free.add(number);
        }
    }

    /** The number that {@link #take} would return, or {@link #NONE}. */
    int next() {
        return free.isEmpty() ? NONE : free.peek();
    }

    int take() {
        int number = free.remove();
        states[number] = State.IN_USE;
        return number;
    }

    /** How often the number was used before. */
    int earlierUses(int number) {
        return uses[number];
    }

    /** Whether a record of the target may refer to this number: it is, or was, in use. */
    boolean isKnown(int number) {
        return number < states.length && (uses[number] > 0 || states[number] != State.UNUSED);
    }

    /** The writer does not use the number's paths any more; {@link #sendOwed} sends that. */
    void detach(int number) {
        states[number] = State.OWED;
        owedCount++;
    }

    /** Whether a detachment has not been sent. */
    boolean owes() {
        return owedCount > 0;
    }

    /**
     * Sends all detachments that have not been sent.
     *
     * @param send sends a record of the type, if there is room for it now
     * @return the number sent
     */
    int sendOwed(IntPredicate send) {
        int sent = 0;
        for (int number = 0; number < states.length && owedCount > 0; number++) {
            if (states[number] == State.OWED) {
                if (!send.test(ControlRecord.type(ControlRecord.DETACH, number))) {
                    break;
                }
                states[number] = State.DETACHED;
                owedCount--;
                sent++;
            }
        }
        return sent;
    }

    /** The target confirms the end of the number's use; false when it was not asked to. */
    boolean release(int number) {
        if (number >= states.length || states[number] != State.DETACHED) {
            return false;
        }
        states[number] = State.UNUSED;
        uses[number]++;
        free.add(number);
        return true;
    }
}
