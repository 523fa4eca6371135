package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Deadlines;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.function.Predicate;
import java.util.stream.Stream;

/**
 * Finds requests whose two legs name different prompts: under one transfer id a grant waits for a prompt that is not
 * here, and the engine has announced another prompt that no decoder has asked for. Without this check each would wait
 * until its own limit for a counterpart that cannot come.
 *
 * <p>An id may be used for several prompts, concurrently or in sequence, whose legs arrive in any order. So legs count
 * as contradictory only after each has waited alone for {@link ProtocolLimits#contradictionWaitNs()}, and only if there
 * are as many of one kind as of the other; if the numbers differ, some legs may just be late.
 *
 * <p>Owned by the messenger's thread. It declines grants; prefills are stopped by its caller.
 */
final class Contradictions {
    private final Prefills prefills;
    private final WaitingGrants waiting;
    private final EngineEvents engine;
    private final long waitNs;
    /** When each noted id is checked. */
    private final Deadlines<String> due = new Deadlines<>();
    /** Ids that have a check scheduled. */
    private final Set<String> noted = new HashSet<>();

    Contradictions(Prefills prefills, WaitingGrants waiting, EngineEvents engine, ProtocolLimits limits) {
        this.prefills = prefills;
        this.waiting = waiting;
        this.engine = engine;
        this.waitNs = limits.contradictionWaitNs();
    }

    /** A grant waits under this id, or the engine has announced a prompt: schedules a check if the two differ. */
    void note(String transferId, long nowNs) {
        boolean looksLikeIt = !noted.contains(transferId)
                && !lonelyGrants(transferId).isEmpty()
                && !unaskedPrefills(transferId, prefill -> false).isEmpty();
        if (looksLikeIt) {
            noted.add(transferId);
            due.set(transferId, nowNs + waitNs);
        }
    }

    /**
     * Ends both legs of all requests that have been contradictory for long enough. Returns the number of ids.
     *
     * @param expected whether a decoder has announced that it will ask for a prompt
     * @param stop receives each prompt that will not be asked for, and the reason
     */
    int endOld(long nowNs, Predicate<Prefill> expected, BiConsumer<Prefill, String> stop) {
        int ended = 0;
        for (String id = due.takeOver(nowNs); id != null; id = due.takeOver(nowNs)) {
            noted.remove(id);
            List<PageGrant> grants = lonelyGrants(id).stream()
                    .filter(grant -> isOld(grant.receivedNs(), nowNs))
                    .toList();
            List<Prefill> unasked = unaskedPrefills(id, expected).stream()
                    .filter(prefill -> isOld(prefill.begunNs, nowNs))
                    .toList();
            long promptsWanted = count(grants.stream().map(PageGrant::transfer));
            if (promptsWanted > 0 && promptsWanted == count(unasked.stream().map(Prefill::transfer))) {
                end(id, grants, unasked, stop, nowNs);
                ended++;
            }
            note(id, nowNs);
        }
        return ended;
    }

    private boolean isOld(long sinceNs, long nowNs) {
        return nowNs - sinceNs >= waitNs;
    }

    /** Counts distinct prompts: several requests may share one, and each messenger of a decoder's engine grants it. */
    private static long count(Stream<TransferKey> prompts) {
        return prompts.distinct().count();
    }

    private void end(
            String id, List<PageGrant> grants, List<Prefill> unasked, BiConsumer<Prefill, String> stop, long nowNs) {
        String sentence = "the two legs of transfer " + id + " name different prompts (their digests differ): send"
                + " both the same tokens and adapter, to engines with the same tokenizer, adapters, weights and"
                + " connector version";
        engine.log(EngineLog.Level.WARNING, sentence);
        grants.forEach(grant -> waiting.decline(grant, sentence, nowNs));
        unasked.forEach(prefill -> stop.accept(prefill, sentence));
    }

    long earliestNs(long latestNs) {
        return due.earliestNs(latestNs);
    }

    /** The grants that wait under this id for a prompt that is not here. */
    private List<PageGrant> lonelyGrants(String transferId) {
        return waiting.of(transferId).stream()
                .filter(grant -> !prefills.any(grant.transfer()))
                .toList();
    }

    /** Prompts announced by the engine under this id that no decoder has asked for, or is expected to. */
    private List<Prefill> unaskedPrefills(String transferId, Predicate<Prefill> expected) {
        return prefills.named(transferId).stream()
                .filter(prefill -> prefill.announced() && !prefill.stopped() && prefill.answeredRanks == null)
                .filter(prefill -> !expected.test(prefill))
                .toList();
    }
}
