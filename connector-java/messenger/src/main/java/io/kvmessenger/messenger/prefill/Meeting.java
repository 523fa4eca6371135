package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Stream;

/**
 * All that is under way under one transfer id: prefills, grants that wait for theirs, and announced answers. It finds the
 * prefill that a decoder's answer is for.
 *
 * <p>Several prefills may have one id. Prefills of different prompts are distinguished by their digests. Requests of the
 * same prompt are interchangeable: each takes one answer of every rank, in the order in which they began. In two cases
 * one prefill at a time is allowed per id: if a side sends no digest, and if context rows follow, which belong to a
 * request rather than to its prompt.
 *
 * <p>State only, owned by the messenger's thread; changed by {@link Meetings}. It is due when its legs may turn out to
 * name different prompts.
 */
final class Meeting implements Due {
    final String id;
    /** Whether a transfer may have rows that belong to its request. */
    private final boolean contextFollows;
    /** In the order in which they began. */
    final List<Prefill> prefills = new ArrayList<>(1);
    /** Grants whose prefill has not begun, in order of arrival. */
    final List<PageGrant> waiting = new ArrayList<>(1);

    /** In the order in which sessions made them, which is the order of the replies: runs are reproducible. */
    private final Map<TransferKey, Set<Announcement>> announced = new HashMap<>(2);

    boolean toCompare;

    /** Prompts of a contradiction whose grants were declined: their decoders may ask once more, by the present names. */
    private List<Prefill> contradicted = List.of();

    /**
     * Legs that end because they name different prompts.
     *
     * @param grants those that ask for a prompt that is not here
     * @param prefills those that no decoder has asked for since such grants were declined
     */
    record Contradiction(String id, List<PageGrant> grants, List<Prefill> prefills) {
        boolean isNone() {
            return grants.isEmpty() && prefills.isEmpty();
        }

        String sentence() {
            return "the two legs of transfer " + id
                    + " name different prompts (their digests differ): send both the same"
                    + " tokens and adapter, to engines with the same tokenizer, adapters, weights and connector version";
        }
    }

    Meeting(String id, boolean contextFollows) {
        this.id = id;
        this.contextFollows = contextFollows;
    }

    boolean isEmpty() {
        return prefills.isEmpty() && waiting.isEmpty() && announced.isEmpty() && !toCompare;
    }

    /** Whether several requests of this transfer may be sent concurrently, each to whichever decoder asks next. */
    boolean mayBeSeveral(TransferKey transfer) {
        return transfer.hasDigest() && !contextFollows;
    }

    // ---- prefills

    /** Whether a prefill may be meant by this transfer key. */
    boolean has(TransferKey transfer) {
        return first(transfer, prefill -> true) != null;
    }

    /** Whether a prefill of another prompt is here. */
    boolean hasOther(TransferKey transfer) {
        return meant(transfer).size() < prefills.size();
    }

    /** All prefills that may be meant by this transfer key. */
    List<Prefill> meant(TransferKey transfer) {
        return prefills.stream()
                .filter(prefill -> prefill.transfer().mayMean(transfer))
                .toList();
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

    /** The prefill that the session's next answer is for; null when all have been answered. */
    Prefill awaiting(TransferKey transfer, DecoderSession session) {
        return first(
                transfer, prefill -> prefill.awaitsAnswerOf(session.peerCache().ranks()));
    }

    /** The prefill that uses this transfer where only one may; null if none. */
    Prefill rivalOf(TransferKey transfer) {
        return first(transfer, prefill -> !prefill.transfer().equals(transfer) || !mayBeSeveral(transfer));
    }

    /** The delivery of this grant, if its answer has not been sent; else null. */
    Delivery find(DecoderSession session, long grantId) {
        for (Prefill prefill : prefills) {
            Delivery delivery = prefill.find(session, grantId);
            if (delivery != null) {
                return delivery;
            }
        }
        return null;
    }

    /** The first matching prefill that the transfer key may mean; an equal key takes precedence. */
    private Prefill first(TransferKey transfer, Predicate<Prefill> wanted) {
        Prefill found = null;
        for (Prefill prefill : prefills) {
            if (prefill.transfer().mayMean(transfer) && wanted.test(prefill)) {
                if (prefill.transfer().equals(transfer)) {
                    return prefill;
                }
                found = found == null ? prefill : found;
            }
        }
        return found;
    }

    // ---- grants that wait

    /** The next waiting grant for a prefill that has just begun. */
    Optional<PageGrant> nextFor(Prefill prefill) {
        return waiting.stream()
                .filter(grant -> prefill.transfer().mayMean(grant.transfer()))
                .filter(grant -> !mayBeSeveral(prefill.transfer())
                        || !mayBeSeveral(grant.transfer())
                        || prefill.awaitsAnswerOf(grant.ranks()))
                .findFirst();
    }

    /** A waiting grant that needs the same prefill, which can serve only one of both. */
    Optional<PageGrant> rivalOf(PageGrant grant) {
        return waiting.stream()
                .filter(other ->
                        !other.ranks().fits(grant.ranks()) || other.ranks().intersects(grant.ranks()))
                .filter(other -> !mayBeSeveral(other.transfer()) || !mayBeSeveral(grant.transfer()))
                .filter(other -> other.transfer().mayMean(grant.transfer()))
                .findFirst();
    }

    Optional<PageGrant> waiting(DecoderSession session, long grantId) {
        return waiting.stream().filter(grant -> grant.is(session, grantId)).findFirst();
    }

    // ---- announced answers

    void add(Announcement announcement) {
        announced
                .computeIfAbsent(announcement.transfer, unknown -> new LinkedHashSet<>(2))
                .add(announcement);
    }

    void remove(Announcement announcement) {
        announced.computeIfPresent(announcement.transfer, (transfer, all) -> {
            all.remove(announcement);
            return all.isEmpty() ? null : all;
        });
    }

    /** Announced answers that may be for this prompt, and are still to come. */
    List<Announcement> expected(Prefill prefill) {
        return announcedFor(prefill).toList();
    }

    boolean isExpected(Prefill prefill) {
        return announcedFor(prefill).findAny().isPresent();
    }

    private Stream<Announcement> announcedFor(Prefill prefill) {
        return announced.entrySet().stream()
                .filter(entry -> entry.getKey().mayMean(prefill.transfer()))
                .flatMap(entry -> entry.getValue().stream());
    }

    // ---- legs that name different prompts

    /**
     * Whether a grant waits for a prompt that is not here, while a prompt is here that no decoder has asked for; or such
     * a prompt waits for its decoder to ask once more.
     */
    boolean looksContradictory() {
        if (!contradicted.isEmpty()) {
            return true;
        }
        return lonelyGrants().findAny().isPresent()
                && unaskedPrefills().findAny().isPresent();
    }

    /**
     * An id may be used for several prompts, concurrently or in sequence, whose legs arrive in any order. So legs count
     * as contradictory only after each has waited alone for a while, and only if there are as many prompts of one kind
     * as of the other; if the numbers differ, some legs may just be late.
     *
     * <p>Their grants end at once. Their prompts end if no decoder has asked for them at the next comparison: where the
     * weights of both engines have changed between the two legs, a decoder that is declined asks by the new name.
     *
     * @param waitNs how long each must have waited
     */
    Contradiction contradiction(long nowNs, long waitNs) {
        List<PageGrant> grants = lonelyGrants()
                .filter(grant -> nowNs - grant.receivedNs() >= waitNs)
                .toList();
        List<Prefill> unasked = unaskedPrefills()
                .filter(prefill -> !isExpected(prefill) && nowNs - prefill.begunNs >= waitNs)
                .toList();
        List<Prefill> over = unasked.stream().filter(contradicted::contains).toList();
        List<Prefill> begun =
                unasked.stream().filter(prefill -> !over.contains(prefill)).toList();
        // several requests may share a prompt, and each messenger of a decoder's engine grants it
        long wanted = grants.stream().map(PageGrant::transfer).distinct().count();
        long offered = begun.stream().map(Prefill::transfer).distinct().count();
        boolean pairwise = wanted == offered;
        contradicted = pairwise ? begun : List.of();
        return new Contradiction(id, pairwise ? grants : List.of(), over);
    }

    private Stream<PageGrant> lonelyGrants() {
        return waiting.stream().filter(grant -> !has(grant.transfer()));
    }

    /** Prompts announced by the engine that no decoder has asked for. */
    private Stream<Prefill> unaskedPrefills() {
        return prefills.stream()
                .filter(prefill -> prefill.announced() && !prefill.stopped() && prefill.answeredRanks == null);
    }
}
