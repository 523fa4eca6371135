package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Deadlines;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;

/**
 * The prompts that the engine computes in order to send them; finds the one that a decoder's answer is for.
 *
 * <p>Several prefills may have one transfer id. Prefills of different prompts are distinguished by their digests.
 * Requests of the same prompt are interchangeable: each takes one answer of every rank, in the order in which they
 * began. In two cases one prefill at a time is allowed per id: if a side sends no digest, and if context rows follow,
 * which belong to a request rather than to its prompt.
 *
 * <p>Owned by the messenger's thread. It neither begins, stops nor releases prefills: {@link Prefiller} does.
 */
final class Prefills {
    private final boolean contextFollows;
    private final Map<String, Prefill> byRequest = new LinkedHashMap<>();
    /** Prefills of each id in the order in which they began. */
    private final Map<String, List<Prefill>> byTransferId = new HashMap<>();
    /** Those that may have something to submit, now or when a layer becomes readable. */
    private final Set<Prefill> active = new LinkedHashSet<>();
    /** Of prefills that the engine has ended: when they give up waiting for grants, unless one is expected. */
    private final Deadlines<Prefill> expiries = new Deadlines<>();

    private long visits;

    /** @param contextFollows whether a transfer may have rows that belong to its request */
    Prefills(boolean contextFollows) {
        this.contextFollows = contextFollows;
    }

    /** Whether several requests of this transfer may be sent concurrently, each to whichever decoder asks next. */
    boolean mayBeSeveral(TransferKey transfer) {
        return transfer.tellsPrompt() && !contextFollows;
    }

    /** The prefill of the engine's request, or null. */
    Prefill of(String request) {
        return byRequest.get(request);
    }

    /** The prefill that already uses this request id, or this transfer where only one may; null if none. */
    Prefill rivalOf(String request, TransferKey transfer) {
        Prefill same = byRequest.get(request);
        if (same != null) {
            return same;
        }
        return first(transfer, prefill -> !prefill.transfer().equals(transfer) || !mayBeSeveral(transfer));
    }

    void add(Prefill prefill) {
        byRequest.put(prefill.request, prefill);
        byTransferId
                .computeIfAbsent(prefill.transfer().id(), unknown -> new ArrayList<>(1))
                .add(prefill);
        active.add(prefill);
    }

    void remove(Prefill prefill) {
        active.remove(prefill);
        expiries.remove(prefill);
        if (byRequest.remove(prefill.request, prefill)) {
            List<Prefill> namesakes = byTransferId.get(prefill.transfer().id());
            namesakes.remove(prefill);
            if (namesakes.isEmpty()) {
                byTransferId.remove(prefill.transfer().id());
            }
        }
    }

    /** The prefill's state has changed: it may have something to submit. */
    void touch(Prefill prefill) {
        if (has(prefill)) {
            active.add(prefill);
        }
    }

    /** The prefill has nothing to submit until its state changes. */
    void rest(Prefill prefill) {
        active.remove(prefill);
    }

    /** Prefills that may have something to submit; a copy. */
    List<Prefill> active() {
        visits += active.size();
        return List.copyOf(active);
    }

    /** Sets when it gives up waiting for grants; effective once the engine has ended it. */
    void expireAt(Prefill prefill, long deadlineNs) {
        prefill.grantDeadlineNs = deadlineNs;
        if (prefill.ended() && has(prefill)) {
            expiries.set(prefill, deadlineNs);
        }
    }

    /** Re-arms expiry for prefills of this transfer: one fewer decoder is expected. */
    void expectLess(TransferKey transfer) {
        meantBy(transfer).forEach(prefill -> expireAt(prefill, prefill.grantDeadlineNs));
    }

    /** Takes a prefill whose deadline has passed, even if it no longer waits; each is returned once. Null if none. */
    Prefill takeLate(long nowNs) {
        Prefill late = expiries.takeOver(nowNs);
        visits += late == null ? 0 : 1;
        return late;
    }

    long earliestNs(long latestNs) {
        return expiries.earliestNs(latestNs);
    }

    /** Number of prefills visited by loops over several of them: a bound on the cost of duty cycles. */
    long visits() {
        return visits;
    }

    int count() {
        return byRequest.size();
    }

    boolean has(Prefill prefill) {
        return byRequest.get(prefill.request) == prefill;
    }

    /** Whether any prefill may be meant by this transfer key. */
    boolean any(TransferKey transfer) {
        return first(transfer, prefill -> true) != null;
    }

    /** All prefills that may be meant by this transfer key. */
    List<Prefill> meantBy(TransferKey transfer) {
        return byTransferId.getOrDefault(transfer.id(), List.of()).stream()
                .filter(prefill -> prefill.transfer().mayMean(transfer))
                .toList();
    }

    /** All prefills of this id, whatever their prompt. */
    List<Prefill> named(String transferId) {
        return byTransferId.getOrDefault(transferId, List.of());
    }

    /** Whether a prefill of another prompt has the same id. */
    boolean anyOtherPrompt(TransferKey transfer) {
        return byTransferId.getOrDefault(transfer.id(), List.of()).stream()
                .anyMatch(prefill -> !prefill.transfer().mayMean(transfer));
    }

    /** The prefill that a grant is for, even if it will refuse the grant; null if that prefill is yet to come. */
    Prefill forGrant(PageGrant grant) {
        EngineRanks ranks = grant.ranks();
        if (!mayBeSeveral(grant.transfer()) || first(grant.transfer(), p -> !mayBeSeveral(p.transfer())) != null) {
            Prefill only = first(grant.transfer(), prefill -> true);
            return only == null || only.servedBefore(ranks) ? null : only;
        }
        Prefill next = first(grant.transfer(), prefill -> !prefill.stopped() && prefill.awaitsAnswerOf(ranks));
        if (next == null) { // a decline that the decoder revokes
            next = first(grant.transfer(), prefill -> !prefill.stopped() && prefill.mayAnswer(ranks));
        }
        return next == null
                ? first(grant.transfer(), prefill -> prefill.stopped() && prefill.awaitsAnswerOf(ranks))
                : next;
    }

    /** The prefill that the next answer of these ranks is for; null when all have been answered. */
    Prefill awaiting(TransferKey transfer, EngineRanks ranks) {
        return first(transfer, prefill -> prefill.awaitsAnswerOf(ranks));
    }

    /** Whether a prefill that has just begun takes a grant that was waiting. */
    boolean takes(Prefill prefill, PageGrant grant) {
        return prefill.transfer().mayMean(grant.transfer())
                && (!mayBeSeveral(prefill.transfer())
                        || !mayBeSeveral(grant.transfer())
                        || prefill.awaitsAnswerOf(grant.ranks()));
    }

    /** The delivery of this grant, if its answer has not been sent; else null. */
    Delivery find(DecoderSession session, TransferKey transfer, long grantId) {
        for (Prefill prefill : byTransferId.getOrDefault(transfer.id(), List.of())) {
            Delivery delivery = prefill.find(session, grantId);
            if (delivery != null) {
                return delivery;
            }
        }
        return null;
    }

    List<Delivery> deliveriesTo(DecoderSession session) {
        visits += byRequest.size();
        return byRequest.values().stream()
                .flatMap(prefill -> prefill.deliveries.stream())
                .filter(delivery -> delivery.isOf(session))
                .toList();
    }

    /** All prefills, a live view: copy it before making changes. Not for use in every duty cycle. */
    Collection<Prefill> all() {
        visits += byRequest.size();
        return byRequest.values();
    }

    /** The first matching prefill that the transfer key may mean; an equal key takes precedence. */
    private Prefill first(TransferKey transfer, Predicate<Prefill> wanted) {
        Prefill found = null;
        for (Prefill prefill : byTransferId.getOrDefault(transfer.id(), List.of())) {
            if (prefill.transfer().mayMean(transfer) && wanted.test(prefill)) {
                if (prefill.transfer().equals(transfer)) {
                    return prefill;
                }
                found = found == null ? prefill : found;
            }
        }
        return found;
    }
}
