package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.ProtocolState;
import java.util.EnumSet;
import java.util.Set;

/**
 * What one prefiller's messenger contributes to a fetch. It has a window of its own, so that its end is counted,
 * confirmed or proven independently of the other sources. State only, owned by the messenger's thread; {@link Decoder}
 * drives it.
 */
final class FetchSource {
    /** Interval at which a count is looked at that may end below the window's weight, which no event reports. */
    private static final long DRAIN_LOOK_NS = 1_000_000;

    /** The states of a source, in order; the table of docs/protocol.md. */
    enum State implements ProtocolState<State> {
        /** Waits for its session, or for a free imm slot. It may not write. */
        WAITING,
        /** It may write. */
        GRANTED,
        /** It may write until the prefiller confirms the cancellation. */
        CANCELLING,
        /** It posts nothing more; what it has posted may land until it has been counted. */
        DRAINING,
        /** Its session has ended; what was on its way may land and be counted until its admission is closed. */
        AWAITING_PROOF,
        /** All that was expected of it has arrived. */
        FILLED,
        /** It has not sent everything, and can write no more. */
        DRAINED;

        @Override
        public Set<State> next() {
            return switch (this) {
                case WAITING -> EnumSet.of(GRANTED, FILLED, DRAINED);
                case GRANTED -> EnumSet.of(FILLED, CANCELLING, DRAINING, AWAITING_PROOF, DRAINED);
                case CANCELLING -> EnumSet.of(DRAINING, FILLED, AWAITING_PROOF, DRAINED);
                case DRAINING -> EnumSet.of(WAITING, DRAINED, FILLED, AWAITING_PROOF);
                case AWAITING_PROOF -> EnumSet.of(FILLED, DRAINED);
                case FILLED -> EnumSet.of(DRAINING);
                case DRAINED -> EnumSet.noneOf(State.class);
            };
        }
    }

    final Fetch fetch;
    final EngineCommand.PrefillerAddress address;
    final PrefillerSession session;
    private State state = State.WAITING;
    /** The last grant and all that is known of it; replaced whole by the next one. */
    SourceGrant grant = SourceGrant.none();

    FetchSource(Fetch fetch, EngineCommand.PrefillerAddress address, PrefillerSession session) {
        this.fetch = fetch;
        this.address = address;
        this.session = session;
    }

    State state() {
        return state;
    }

    /** @throws IllegalStateException if that state may not follow */
    void become(State next) {
        state = ProtocolState.change(state, next);
    }

    /** Records a window that has been opened, whose grant is about to be sent. */
    void granted(SourceGrant opened) {
        grant = opened;
        become(State.GRANTED);
    }

    boolean everGranted() {
        return grant.id > 0;
    }

    boolean isOf(TransferKey transfer) {
        return fetch.transfer.equals(transfer);
    }

    boolean holdsWindow() {
        return grant.holdsWindow();
    }

    /** Nothing of it can land in the fetch's pages any more. */
    boolean over() {
        return state == State.FILLED || state == State.DRAINED;
    }

    /** The prefiller has posted writes of this weight, and posts no more. */
    void drain(long posted, boolean again, long deadlineNs) {
        grant.postedWeight = posted;
        grant.again = again;
        grant.confirmDeadlineNs = deadlineNs;
        become(State.DRAINING);
    }

    /** When its present state has to be checked again; {@code otherwiseNs} in a state without a limit. */
    long dueNs(long nowNs, long otherwiseNs) {
        return switch (state) {
            case CANCELLING -> grant.isCounted() ? nowNs + DRAIN_LOOK_NS : grant.confirmDeadlineNs;
            case DRAINING -> nowNs + DRAIN_LOOK_NS;
            case GRANTED, AWAITING_PROOF -> grant.isCounted() ? nowNs + DRAIN_LOOK_NS : otherwiseNs;
            case WAITING, FILLED, DRAINED -> otherwiseNs;
        };
    }

    /** It waits for the prefiller's confirmation or for the count of what was posted; both have a deadline. */
    boolean ending() {
        return state == State.CANCELLING || state == State.DRAINING;
    }

    /** Whether its count is looked at, because its window does not report the last write. */
    boolean counting() {
        return grant.isCounted()
                && (state == State.GRANTED || state == State.CANCELLING || state == State.AWAITING_PROOF);
    }

    /** Whether the deadline of its present state has passed. */
    boolean mustEndBy(long nowNs) {
        return ending() && nowNs - grant.confirmDeadlineNs >= 0;
    }

    /** What has not happened by the deadline, as the predicate of a sentence about the prefiller. */
    String overdue() {
        return state == State.CANCELLING
                ? " did not confirm a cancellation"
                : " posted writes of " + grant.postedWeight + " pages, of which " + grant.arrivedWeight() + " arrived";
    }

    /** Ends it and closes its window; the caller knows that nothing more can land. */
    void end(State end) {
        become(end);
        grant.close();
    }
}
