package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.transfer.ImmWindow;

/**
 * What one prefiller's messenger contributes to a fetch: a window of its own, so that its end is counted, confirmed or
 * proven apart from the others'. State only, owned by the messenger's thread; {@link Decoder} drives it.
 */
final class FetchSource {
    /** How often the count of a source that drains is looked at: it says nothing by itself before it is full. */
    private static final long DRAIN_LOOK_NS = 1_000_000;

    /** The states of a source, in order. */
    enum State {
        /** Waits for its session, or for a free imm slot. It may not write. */
        WAITING,
        /** It may write. */
        GRANTED,
        /** It may write until it confirms. */
        CANCELLING,
        /** It posts no more; what it has posted may write until it has been counted. */
        DRAINING,
        /** Its session has ended; it cannot write once its admission is closed. */
        AWAITING_PROOF,
        /** All that was expected of it has arrived. */
        FILLED,
        /** It has not sent all, and cannot write any more. */
        DRAINED
    }

    final Fetch fetch;
    final EngineCommand.PrefillerAddress address;
    final Session session;
    State state = State.WAITING;
    ImmWindow window;
    /** Names the last grant in frames, and its window at the transfer engine; 0 before the first. */
    long grantId;
    /** What its window, once it has one, was opened for. */
    long expectedWeight;
    /** What the prefiller says that its pages hold, for the last grant. */
    final ToldChecksums checksums = new ToldChecksums();
    /** Of all {@link #checksums} together. */
    long checksummedWeight;
    /** How many of {@link #checksums} have been compared. */
    int comparedCount;
    /** Over the pages of the one that is being compared; null between two. */
    PageSum sum;
    /** Set with CANCELLING and DRAINING: when the prefiller must have confirmed, and when all must have been counted. */
    long confirmDeadlineNs;
    /** Set with DRAINING: the weight of all that was posted. */
    long postedWeight;
    /** Set with DRAINING: it is granted again when it is over, unless the fetch fails meanwhile. */
    boolean grantAgain;

    FetchSource(Fetch fetch, EngineCommand.PrefillerAddress address, Session session) {
        this.fetch = fetch;
        this.address = address;
        this.session = session;
    }

    /** A window has been opened, and its grant is about to be sent. */
    void granted(long id, ImmWindow opened, long expected) {
        grantId = id;
        window = opened;
        expectedWeight = expected;
        state = State.GRANTED;
        checksums.clear(); // an earlier grant's
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

    /** The prefiller has posted so much, and posts no more. */
    void drain(long posted, boolean again, long deadlineNs) {
        postedWeight = posted;
        grantAgain = again;
        confirmDeadlineNs = deadlineNs;
        state = State.DRAINING;
    }

    /** When its present state has to be looked at again, {@code otherwiseNs} where nothing is waited for. */
    long dueNs(long nowNs, long otherwiseNs) {
        return switch (state) {
            case CANCELLING -> confirmDeadlineNs;
            case DRAINING -> nowNs + DRAIN_LOOK_NS;
            case WAITING, GRANTED, AWAITING_PROOF, FILLED, DRAINED -> otherwiseNs;
        };
    }

    /** A word of the prefiller, or the count of what it posted, ends it; that has a limit. */
    boolean ending() {
        return state == State.CANCELLING || state == State.DRAINING;
    }

    /** Whether a limit of its present state is over. */
    boolean mustEndBy(long nowNs) {
        return ending() && nowNs - confirmDeadlineNs >= 0;
    }

    /** What has not happened then; completes a sentence that begins with the prefiller. */
    String overdue() {
        return state == State.CANCELLING
                ? " did not confirm a cancellation"
                : " posted writes of " + postedWeight + " pages, of which " + arrivedWeight() + " arrived";
    }

    /** What has been counted for its grant. */
    long arrivedWeight() {
        return window == null ? expectedWeight : window.arrivedWeight();
    }

    boolean hasAll() {
        return arrivedWeight() == expectedWeight;
    }

    /** Ends it; the caller knows that nothing more can land. */
    void end(State end) {
        state = end;
        if (window != null) {
            window.close(true);
            window = null;
        }
    }
}
