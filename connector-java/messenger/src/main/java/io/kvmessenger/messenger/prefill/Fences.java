package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Preempted prompts whose writes have not all completed, and the fences that wait for that. Owned by the messenger's
 * thread; it stops no prompt, and ends the sessions that keep a fence waiting for too long.
 */
final class Fences {
    private final boolean contextFollows;
    private final List<Prefill> busy = new ArrayList<>();

    /**
     * @param contextFollows decoders take nothing without context rows, which leave when all KV has left: a fence
     *     then waits for rows that are under way, and not for KV that will not be taken
     */
    Fences(boolean contextFollows) {
        this.contextFollows = contextFollows;
    }

    /** Keeps a preempted prompt if anything still reads its pages. */
    void add(Prefill prefill, CompletableFuture<Void> fenced, long nowNs) {
        if (!prefill.writesOver()) {
            prefill.fencedNs = nowNs;
            prefill.fenced = fenced;
            busy.add(prefill);
        }
    }

    /** A fence that was not reached in its time is asked for again: the earlier request has given up. */
    void waitAgain(List<String> requests, CompletableFuture<Void> fenced) {
        for (Prefill prefill : busy) {
            if (requests.contains(prefill.request)) {
                prefill.fenced = fenced;
            }
        }
    }

    /** The last write of a prompt has completed. */
    void onDrained(Prefill prefill) {
        if (prefill.fenced != null && prefill.writesOver() && busy.remove(prefill)) {
            completeIfQuiet(prefill.fenced);
        }
    }

    void completeIfQuiet(CompletableFuture<Void> fenced) {
        if (busy.stream().noneMatch(p -> p.fenced == fenced && mayStillBeTaken(p))) {
            fenced.complete(null);
        }
    }

    /** A peer that has stopped does not hold the engine up: what it holds of a preempted prompt ends with its session. */
    int endLate(Sessions sessions, ProtocolLimits limits, long nowNs) {
        List<Session> late = holdersAfter(nowNs - limits.fenceLimitNs());
        for (Session session : late) {
            sessions.end(
                    session,
                    session.peerName() + " still held writes of a preempted prompt after "
                            + limits.fenceLimitNs() / 1_000_000 + " ms (a fifth of silence_limit_seconds)");
        }
        return late.size();
    }

    /** Sessions whose writes have kept a fence waiting since that time or longer. */
    private List<Session> holdersAfter(long sinceNs) {
        if (busy.isEmpty()) {
            return List.of();
        }
        return busy.stream()
                .filter(prefill -> isAwaited(prefill) && prefill.fencedNs - sinceNs <= 0)
                .flatMap(prefill -> prefill.deliveries.stream())
                .filter(delivery ->
                        delivery.writesInFlight > 0 && delivery.grant.session().ready())
                .map(delivery -> delivery.grant.session())
                .distinct()
                .toList();
    }

    /** When the first of them has waited so long, or {@code latestNs} when that is earlier. */
    long earliestNs(long latestNs, long limitNs) {
        long earliest = latestNs;
        for (Prefill prefill : busy) {
            long lateNs = prefill.fencedNs + limitNs;
            if (isAwaited(prefill) && holdsSession(prefill) && lateNs - earliest < 0) {
                earliest = lateNs;
            }
        }
        return earliest;
    }

    private static boolean holdsSession(Prefill prefill) {
        return prefill.deliveries.stream()
                .anyMatch(delivery ->
                        delivery.writesInFlight > 0 && delivery.grant.session().ready());
    }

    private boolean isAwaited(Prefill prefill) {
        return mayStillBeTaken(prefill) && !prefill.fenced.isDone();
    }

    private boolean mayStillBeTaken(Prefill prefill) {
        return !contextFollows || prefill.contextUnderWay();
    }

    /** Whether a preempted prompt still owes the answer for this grant. */
    boolean anyHolds(Session session, long grantId) {
        return busy.stream().anyMatch(p -> p.find(session, grantId) != null);
    }

    int count() {
        return busy.size();
    }
}
