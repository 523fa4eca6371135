package io.kvmessenger.messenger;

import io.kvmessenger.transfer.ImmWindow;

/**
 * What one prefiller's messenger contributes to a fetch: a window of its own, so that its end is counted, confirmed or
 * proven apart from the others'. State only, owned by the messenger's thread; {@link Decoder} drives it.
 */
final class FetchSource {
    /** Where a source is in its life. */
    enum State {
        /** Waits for its session, or for a free imm slot. It may not write. */
        WAITING,
        /** It may write. */
        GRANTED,
        /** It may write until it confirms. */
        CANCELLING,
        /** Its session has ended; it cannot write once its admission is closed. */
        AWAITING_PROOF,
        /** All that was expected of it has arrived. */
        FILLED,
        /** It has not sent all, and cannot write any more. */
        QUIET
    }

    final Fetch fetch;
    final EngineCommand.PrefillerAddress address;
    final long cookie;
    final Session session;
    State state = State.WAITING;
    ImmWindow window;
    /** A grant has been sent, this one or an earlier one. */
    boolean everGranted;
    /** Set with CANCELLING: when the prefiller must have confirmed. */
    long confirmDeadlineNs;

    FetchSource(Fetch fetch, EngineCommand.PrefillerAddress address, long cookie, Session session) {
        this.fetch = fetch;
        this.address = address;
        this.cookie = cookie;
        this.session = session;
    }

    boolean holdsWindow() {
        return window != null;
    }

    /** Nothing of it can land in the fetch's pages any more. */
    boolean over() {
        return state == State.FILLED || state == State.QUIET;
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
