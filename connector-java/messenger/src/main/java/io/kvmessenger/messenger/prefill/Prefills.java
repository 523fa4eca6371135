package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Deadlines;
import io.kvmessenger.messenger.session.Session;
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
 * The prompts that the engine computes to be sent, and which of them a decoder's word is for.
 *
 * <p>Several may have one transfer id. Prompts that differ are told apart by their digests. Requests of one prompt are not,
 * and need not be: each takes one word of every rank, in the order in which they began. Two cases stay as narrow as the id:
 * where a side tells no digest, and where context rows follow, which belong to a request and not to its prompt; there one
 * prompt at a time is sent.
 *
 * <p>Owned by the messenger's thread. It begins, stops and releases none: {@link Prefiller} does.
 */
final class Prefills {
    private final boolean contextFollows;
    private final Map<String, Prefill> byRequest = new LinkedHashMap<>();
    /** In the order in which they began. */
    private final Map<String, List<Prefill>> byTransferId = new HashMap<>();
    /** Those that may have something to submit, now or when a layer becomes readable. */
    private final Set<Prefill> active = new LinkedHashSet<>();
    /** Of those that the engine has ended: when they give up waiting for grants, unless one is expected. */
    private final Deadlines<Prefill> expiries = new Deadlines<>();

    private long looks;

    /** @param contextFollows a transfer may have rows that belong to its request */
    Prefills(boolean contextFollows) {
        this.contextFollows = contextFollows;
    }

    /** Whether several requests of this very transfer may be sent at the same moment, each to whichever decoder asks next. */
    boolean mayBeSeveral(TransferKey transfer) {
        return transfer.tellsPrompt() && !contextFollows;
    }

    /** The engine's request of that id, or null. */
    Prefill of(String request) {
        return byRequest.get(request);
    }

    /** Why a request cannot be sent beside those there are: it is the same one, or a decoder could mean either. Or null. */
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

    /** Something has happened to it: it may have something to submit. */
    void touch(Prefill prefill) {
        if (has(prefill)) {
            active.add(prefill);
        }
    }

    /** It has nothing to submit before something happens to it. */
    void rest(Prefill prefill) {
        active.remove(prefill);
    }

    /** All that may have something to submit; a copy. */
    List<Prefill> active() {
        looks += active.size();
        return List.copyOf(active);
    }

    /** When it gives up waiting for grants, from the moment on in which the engine has ended it. */
    void expireAt(Prefill prefill, long deadlineNs) {
        prefill.grantDeadlineNs = deadlineNs;
        if (prefill.engineEnded && has(prefill)) {
            expiries.set(prefill, deadlineNs);
        }
    }

    /** A word of a decoder that was expected has come: who still waits under that name is looked at again. */
    void expectLess(TransferKey transfer) {
        meantBy(transfer).forEach(prefill -> expireAt(prefill, prefill.grantDeadlineNs));
    }

    /** One whose time is over, whether or not it still waits; each is returned once. Null when there is none. */
    Prefill takeLate(long nowNs) {
        Prefill late = expiries.takeOver(nowNs);
        looks += late == null ? 0 : 1;
        return late;
    }

    long earliestNs(long latestNs) {
        return expiries.earliestNs(latestNs);
    }

    /** How many have been looked at in all walks over several: the cost of a duty cycle is bounded by it. */
    long looks() {
        return looks;
    }

    int count() {
        return byRequest.size();
    }

    boolean has(Prefill prefill) {
        return byRequest.get(prefill.request) == prefill;
    }

    /** Whether there is one that this transfer may mean. */
    boolean any(TransferKey transfer) {
        return first(transfer, prefill -> true) != null;
    }

    /** All that this transfer may mean. */
    List<Prefill> meantBy(TransferKey transfer) {
        return byTransferId.getOrDefault(transfer.id(), List.of()).stream()
                .filter(prefill -> prefill.transfer().mayMean(transfer))
                .toList();
    }

    /** All that have this id, whichever prompt. */
    List<Prefill> named(String transferId) {
        return byTransferId.getOrDefault(transferId, List.of());
    }

    /** Whether one of another prompt has the same id. */
    boolean anyOtherPrompt(TransferKey transfer) {
        return byTransferId.getOrDefault(transfer.id(), List.of()).stream()
                .anyMatch(prefill -> !prefill.transfer().mayMean(transfer));
    }

    /** The one that a grant is for, also when it will be refused; null when it is for one to come. */
    Prefill forGrant(PageGrant grant) {
        EngineRanks ranks = grant.ranks();
        if (!mayBeSeveral(grant.transfer()) || first(grant.transfer(), p -> !mayBeSeveral(p.transfer())) != null) {
            Prefill only = first(grant.transfer(), prefill -> true);
            return only == null || only.servedBefore(ranks) ? null : only;
        }
        Prefill next = first(grant.transfer(), prefill -> !prefill.stopped && prefill.awaitsAnswerOf(ranks));
        if (next == null) { // a decline that is taken back
            next = first(grant.transfer(), prefill -> !prefill.stopped && prefill.mayAnswer(ranks));
        }
        return next == null
                ? first(grant.transfer(), prefill -> prefill.stopped && prefill.awaitsAnswerOf(ranks))
                : next;
    }

    /** The one that the next word of these ranks is for; null when all have had theirs. */
    Prefill awaiting(TransferKey transfer, EngineRanks ranks) {
        return first(transfer, prefill -> prefill.awaitsAnswerOf(ranks));
    }

    /** Whether a prefill that has begun takes a grant that waits for one. */
    boolean takes(Prefill prefill, PageGrant grant) {
        return prefill.transfer().mayMean(grant.transfer())
                && (!mayBeSeveral(prefill.transfer())
                        || !mayBeSeveral(grant.transfer())
                        || prefill.awaitsAnswerOf(grant.ranks()));
    }

    /** The delivery of a grant whose writes are not answered for yet, or null. */
    Delivery find(Session session, TransferKey transfer, long grantId) {
        for (Prefill prefill : byTransferId.getOrDefault(transfer.id(), List.of())) {
            Delivery delivery = prefill.find(session, grantId);
            if (delivery != null) {
                return delivery;
            }
        }
        return null;
    }

    List<Delivery> deliveriesTo(Session session) {
        looks += byRequest.size();
        return byRequest.values().stream()
                .flatMap(prefill -> prefill.deliveries.stream())
                .filter(delivery -> delivery.isOf(session))
                .toList();
    }

    /** All, for a look that no duty cycle needs; a change needs a copy. */
    Collection<Prefill> all() {
        looks += byRequest.size();
        return byRequest.values();
    }

    /** The first of those that a transfer may mean; those of the very same prompt come first. */
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
