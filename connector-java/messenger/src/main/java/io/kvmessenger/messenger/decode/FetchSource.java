package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.transfer.ImmWindow;

/**
 * What one prefiller's messenger contributes to a fetch. It has a window of its own, so that its end is counted,
 * confirmed or proven independently of the other sources. State only, owned by the messenger's thread; {@link Decoder}
 * drives it.
 */
final class FetchSource {
    /** Interval at which a draining source's count is polled: no event reports a count below the window's weight. */
    private static final long DRAIN_LOOK_NS = 1_000_000;

    /** The states of a source, in order. */
    enum State {
        /** Waits for its session, or for a free imm slot. It may not write. */
        WAITING,
        /** It may write. */
        GRANTED,
        /** It may write until the prefiller confirms the cancellation. */
        CANCELLING,
        /** It posts nothing more; what it has posted may land until it has been counted. */
        DRAINING,
        /** Its session has ended; writes may land until its admission is closed. */
        AWAITING_PROOF,
        /** All that was expected of it has arrived. */
        FILLED,
        /** It has not sent everything, and can write no more. */
        DRAINED
    }

    final Fetch fetch;
    final EngineCommand.PrefillerAddress address;
    final Session session;
    State state = State.WAITING;
    ImmWindow window;
    /** Id of the last grant in frames, and of its window at the transfer engine; 0 before the first grant. */
    long grantId;
    /** The weight that its window was opened for; meaningful once it has had a window. */
    long expectedWeight;
    /** The prefiller's checksums of its pages, for the last grant. */
    final ToldChecksums checksums = new ToldChecksums();
    /** Total weight of the writes in {@link #checksums}. */
    long checksummedWeight;
    /** How many entries of {@link #checksums} have been compared. */
    int comparedCount;
    /** Running sum over the pages of the entry being compared; null between two entries. */
    PageSum sum;
    /** Set in CANCELLING and DRAINING: the deadline for the confirmation, or for counting everything posted. */
    long confirmDeadlineNs;
    /** Set in DRAINING: the weight of everything posted. */
    long postedWeight;
    /** Set in DRAINING: grant again once the source is drained, unless the fetch has failed meanwhile. */
    boolean grantAgain;

    FetchSource(Fetch fetch, EngineCommand.PrefillerAddress address, Session session) {
        this.fetch = fetch;
        this.address = address;
        this.session = session;
    }

    /** Records a window that has been opened, whose grant is about to be sent. */
    void granted(long id, ImmWindow opened, long expected) {
        grantId = id;
        window = opened;
        expectedWeight = expected;
        state = State.GRANTED;
        checksums.clear(); // those of an earlier grant
        checksummedWeight = 0;
    }

    boolean everGranted() {
        return grantId > 0;
    }

    boolean isOf(TransferKey transfer) {
        return fetch.transfer.equals(transfer);
    }

    boolean holdsWindow() {
        return window != null;
    }

    /** Nothing of it can land in the fetch's pages any more. */
    boolean over() {
        return state == State.FILLED || state == State.DRAINED;
    }

    /** The prefiller has posted writes of this weight, and posts no more. */
    void drain(long posted, boolean again, long deadlineNs) {
        postedWeight = posted;
        grantAgain = again;
        confirmDeadlineNs = deadlineNs;
        state = State.DRAINING;
    }

    /** When its present state has to be checked again; {@code otherwiseNs} in a state without a limit. */
    long dueNs(long nowNs, long otherwiseNs) {
        return switch (state) {
            case CANCELLING -> confirmDeadlineNs;
            case DRAINING -> nowNs + DRAIN_LOOK_NS;
            case WAITING, GRANTED, AWAITING_PROOF, FILLED, DRAINED -> otherwiseNs;
        };
    }

    /** It waits for the prefiller's confirmation or for the count of what was posted; both have a deadline. */
    boolean ending() {
        return state == State.CANCELLING || state == State.DRAINING;
    }

    /** Whether the deadline of its present state has passed. */
    boolean mustEndBy(long nowNs) {
        return ending() && nowNs - confirmDeadlineNs >= 0;
    }

    /** What has not happened by the deadline, as the predicate of a sentence about the prefiller. */
    String overdue() {
        return state == State.CANCELLING
                ? " did not confirm a cancellation"
                : " posted writes of " + postedWeight + " pages, of which " + arrivedWeight() + " arrived";
    }

    /** The weight that has arrived for its last grant. */
    long arrivedWeight() {
        return window == null ? expectedWeight : window.arrivedWeight();
    }

    boolean hasAll() {
        return arrivedWeight() == expectedWeight;
    }

    /** Ends it and closes its window; the caller knows that nothing more can land. */
    void end(State end) {
        state = end;
        if (window != null) {
            window.close(true);
            window = null;
        }
    }
}
