package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Sessions;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/**
 * Preempted prompts whose writes have not all completed, and the fences that wait for them. Owned by the messenger's
 * thread. It stops no prompt, and ends the sessions that delay a fence for too long.
 */
final class Fences {
    private final boolean contextFollows;
    private final Set<Prefill> busy = new LinkedHashSet<>();

    /**
     * @param contextFollows whether decoders require context rows, which are sent after all KV. A fence then waits for
     *     context rows in flight, but not for KV, which no decoder accepts without its rows
     */
    Fences(boolean contextFollows) {
        this.contextFollows = contextFollows;
    }

    /** Keeps a preempted prompt, once, if anything still reads its pages. Its limit runs from the first fence on. */
    void add(Prefill prefill, CompletableFuture<Void> fenced, long nowNs) {
        if (prefill.writesOver()) {
            return;
        }
        prefill.fenced = fenced;
        if (busy.add(prefill)) {
            prefill.fencedNs = nowNs;
        }
    }

    /** The engine waits again for a fence that was not reached in time: this future replaces the one it gave up. */
    void waitAgain(List<String> requests, CompletableFuture<Void> fenced) {
        for (Prefill prefill : busy) {
            if (requests.contains(prefill.request)) {
                prefill.fenced = fenced;
            }
        }
    }

    /** A decoder's last write has completed: of a prompt that is kept, it may be the last that a fence waits for. */
    void onDrained(Prefill prefill) {
        if (prefill.fenced == null || !busy.contains(prefill)) {
            return;
        }
        if (prefill.writesOver()) {
            busy.remove(prefill);
        }
        completeIfQuiet(prefill.fenced); // context rows may all have left while KV is under way to another decoder
    }

    void completeIfQuiet(CompletableFuture<Void> fenced) {
        if (busy.stream().noneMatch(p -> p.fenced == fenced && mayStillBeTaken(p))) {
            fenced.complete(null);
        }
    }

    /** Ends the sessions of peers that delay a fence beyond the limit, and so their writes. Returns how many. */
    int endLate(Sessions sessions, ProtocolLimits limits, long nowNs) {
        List<DecoderSession> late = holdersAfter(nowNs - limits.fenceLimitNs());
        for (DecoderSession session : late) {
            sessions.end(
                    session,
                    session.peerName() + " still held writes of a preempted prompt after "
                            + limits.fenceLimitNs() / 1_000_000 + " ms (a fifth of silence_limit_seconds)");
        }
        return late.size();
    }

    /** Sessions whose writes have delayed a fence since that time or longer. */
    List<DecoderSession> holdersAfter(long sinceNs) {
        if (busy.isEmpty()) {
            return List.of();
        }
        return busy.stream()
                .filter(prefill -> isAwaited(prefill) && prefill.fencedNs - sinceNs <= 0)
                .flatMap(prefill -> prefill.deliveries.stream())
                .filter(this::delays)
                .map(delivery -> delivery.grant.session())
                .distinct()
                .toList();
    }

    /** When the first fence reaches the limit, or {@code latestNs} when that is earlier. */
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

    private boolean holdsSession(Prefill prefill) {
        return prefill.deliveries.stream().anyMatch(this::delays);
    }

    /** Whether a fence waits for this delivery's writes, and the end of its session would end them. */
    private boolean delays(Delivery delivery) {
        boolean awaited = contextFollows ? delivery.contextUnderWay() : delivery.writesInFlight > 0;
        return awaited && delivery.grant.session().ready();
    }

    private boolean isAwaited(Prefill prefill) {
        return mayStillBeTaken(prefill) && !prefill.fenced.isDone();
    }

    private boolean mayStillBeTaken(Prefill prefill) {
        return !contextFollows || prefill.contextUnderWay();
    }

    /** Whether the answer to this grant is still to be sent for a preempted prompt. */
    boolean anyHolds(DecoderSession session, long grantId) {
        return busy.stream().anyMatch(p -> p.find(session, grantId) != null);
    }

    /** Preempted prompts whose answer to the session has not been sent; the session would grant them again after it. */
    List<TransferKey> owedTo(DecoderSession session) {
        return busy.stream()
                .filter(p -> p.deliveries.stream().anyMatch(delivery -> delivery.isOf(session) && delivery.owed()))
                .map(Prefill::transfer)
                .toList();
    }

    /** Whether a preempted prompt was granted by the session. */
    boolean anyOf(DecoderSession session) {
        return busy.stream().anyMatch(p -> p.deliveries.stream().anyMatch(delivery -> delivery.isOf(session)));
    }

    int count() {
        return busy.size();
    }
}
