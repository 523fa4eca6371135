package io.kvmessenger.messenger;

import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.WindowArea;

/** One request's KV on its way to this decoder. State only, owned by the messenger's thread; {@link Decoder} drives it. */
final class Fetch {
    /** Where a fetch is in its life. */
    enum State {
        /** Waits for its prefiller's session, or for a free imm slot. Nobody may write. */
        WAITING,
        /** The prefiller may write. */
        GRANTED,
        /** The prefiller may write until it confirms. */
        CANCELLING,
        /** The session has ended; nobody can write once its admission is closed. */
        AWAITING_PROOF,
        /** The engine has been told; a loop over all fetches may still come by. */
        ENDED
    }

    final EngineCommand.Fetch ask;
    final long cookie;
    final long askedNs;
    final long deadlineNs;
    State state = State.WAITING;
    Session session;
    /** Where the prefiller may write, on every rank. */
    WindowArea area;

    ImmWindow window;
    /** A grant has been sent, this one or an earlier one. */
    boolean everGranted;

    long grantedNs;
    /** Set with CANCELLING: when the prefiller must have confirmed. */
    long confirmDeadlineNs;
    /** Why it will fail; empty while it may still arrive. */
    String failure = "";

    Fetch(EngineCommand.Fetch ask, long cookie, long askedNs, long deadlineNs) {
        this.ask = ask;
        this.cookie = cookie;
        this.askedNs = askedNs;
        this.deadlineNs = deadlineNs;
    }

    boolean holdsWindow() {
        return window != null;
    }
}
