package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.session.Deadlines;
import io.kvmessenger.transfer.TransferEngine;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Ended sessions of which a source may still turn out to be all here. The end of a control link says nothing of the
 * writes that were on their way, so the data paths stay open until each such source is filled or given up, the peer's
 * paths have ended by themselves, or a limit is over; then the admission is revoked.
 *
 * <p>Owned by the messenger's thread. It ends no source and no fetch.
 */
final class OpenVerdicts {
    /** Why a session ended, and its sources that may still be filled. */
    record EndedSession(FetchFailure why, String reason, Set<FetchSource> undecided) {
        EndedSession(FetchFailure why, String reason, List<FetchSource> undecided) {
            this(why, reason, new LinkedHashSet<>(undecided));
        }
    }

    private final TransferEngine transfer;
    private final Map<PrefillerSession, EndedSession> bySession = new HashMap<>();
    private final Deadlines<PrefillerSession> deadlines = new Deadlines<>();

    OpenVerdicts(TransferEngine transfer) {
        this.transfer = transfer;
    }

    /** The session has ended, and its admission is open; it is revoked at once if no source may still be filled. */
    void await(PrefillerSession session, EndedSession ended, long deadlineNs) {
        bySession.put(session, ended);
        deadlines.set(session, deadlineNs);
        revokeIfDecided(session, ended);
        if (!ended.undecided.isEmpty()) {
            transfer.revokeUnused(session.admission); // a peer that never wrote is not waited for
        }
    }

    /** The source is filled, or its fetch fails whatever comes. */
    void decided(FetchSource source) {
        EndedSession ended = bySession.get(source.session);
        if (ended != null && ended.undecided.remove(source)) {
            revokeIfDecided(source.session, ended);
        }
    }

    private void revokeIfDecided(PrefillerSession session, EndedSession ended) {
        if (ended.undecided.isEmpty()) {
            remove(session);
            transfer.revoke(session.admission);
        }
    }

    /** The admission of the session is closed. Returns why the session had ended; null when nothing was undecided. */
    EndedSession remove(PrefillerSession session) {
        deadlines.remove(session);
        return bySession.remove(session);
    }

    /** The session whose limit passed first, which is returned once; null when none has passed. */
    PrefillerSession takeOverdue(long nowNs) {
        return deadlines.takeOver(nowNs);
    }

    int count() {
        return bySession.size();
    }

    EndedSession of(PrefillerSession session) {
        return bySession.get(session);
    }

    long nextDeadlineNs(long otherwiseNs) {
        return deadlines.earliestNs(otherwiseNs);
    }
}
