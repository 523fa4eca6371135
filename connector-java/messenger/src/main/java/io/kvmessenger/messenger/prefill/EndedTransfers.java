package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.kv.KvPeer;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * How recent transfers ended, and which answers of decoders were outstanding then. An id may be used again: what is
 * remembered here refuses nothing, it explains, and tells a late answer to an ended attempt from the first of a new one. Other
 * prompts under the same id are other transfers: none answers for another.
 *
 * <p>Owned by the messenger's thread.
 */
final class EndedTransfers {
    private static final String GIVEN_UP = "its pages were given up already";

    /** What the memory has to say to a grant that no prefill here is for. */
    sealed interface Answer {
        /** The grant answers an attempt that has ended: its decoder is told how that ended. */
        record Late(Reason reason, String sentence) implements Answer {}

        /** The grant is for an attempt to come. */
        record None() implements Answer {}
    }

    private static final Answer NONE = new Answer.None();

    /** @param links of the sessions that had grants of it; other sessions are told nothing of it */
    private record Ended(String sentence, boolean aborted, EngineRanks answeredRanks, Set<Long> links, long endedNs) {
        Ended withAnswerOf(EngineRanks ranks) {
            return new Ended(sentence, aborted, EngineRanks.copyOf(ranks), links, endedNs);
        }

        Optional<String> knownTo(Session session) {
            return links.isEmpty() || links.contains(session.link) ? Optional.of(sentence) : Optional.empty();
        }
    }

    private final Map<TransferKey, Ended> byTransfer = new BoundedMap<>(ProtocolLimits.ENDED_TRANSFERS_MAX);
    /** The transfer that ended last under an id. */
    private final Map<String, TransferKey> lastById = new BoundedMap<>(ProtocolLimits.ENDED_TRANSFERS_MAX);

    private final long memoryNs;

    /**
     * A decoder's answer may be on its way as long as its fetch lasts: one of its messengers may connect that late. No fetch is
     * known to last longer than this side's own limit.
     */
    EndedTransfers(ProtocolLimits limits) {
        memoryNs = Math.max(limits.grantWaitNs(), limits.fetchLimitNs());
    }

    void remember(Prefill prefill, long nowNs) {
        String sentence = prefill.sent() || !prefill.stopped ? "it was sent, or given up, already" : prefill.stopReason;
        Set<Long> links = prefill.deliveries.stream()
                .map(delivery -> delivery.grant.session().link)
                .collect(Collectors.toSet());
        boolean aborted = prefill.stopped && prefill.stopCode == Reason.PREFILL_ABORTED;
        byTransfer.put(prefill.transfer(), new Ended(sentence, aborted, prefill.answeredRanks(), links, nowNs));
        lastById.put(prefill.transfer().id(), prefill.transfer());
    }

    /**
     * Whether a grant is meant for the attempt that has ended: the engine gave that prompt up, and the decoder's answer was on
     * its way; or the grant brings a prompt that another messenger of its decoder has brought before. Asked once for each.
     */
    Answer answerTo(PageGrant grant, EngineCommand.Prompt prompt, long nowNs) {
        Ended ended = byTransfer.get(grant.transfer());
        if (ended == null || !(ended.aborted || !prompt.absent())) {
            return NONE;
        }
        if (!takeOwed(grant.session(), grant.transfer(), nowNs)) {
            return NONE;
        }
        return new Answer.Late(
                ended.aborted ? Reason.PREFILL_ABORTED : Reason.EXPIRED,
                ended.knownTo(grant.session()).orElse(GIVEN_UP));
    }

    /**
     * Whether the session's answer was outstanding in an attempt that has ended: each rank answers once in each attempt. Asked
     * once for each answer.
     */
    boolean takeOwed(Session session, TransferKey transfer, long nowNs) {
        if (!owes(session, transfer, nowNs)) {
            return false;
        }
        Ended ended = byTransfer.get(transfer);
        if (ended.answeredRanks == null) {
            byTransfer.put(transfer, ended.withAnswerOf(KvPeer.of(session).ranks()));
        } else {
            ended.answeredRanks.add(KvPeer.of(session).ranks());
        }
        return true;
    }

    /** Whether an attempt has ended, not long ago, without an answer of the session's ranks. */
    boolean owes(Session session, TransferKey transfer, long nowNs) {
        Ended ended = byTransfer.get(transfer);
        return ended != null
                && nowNs - ended.endedNs < memoryNs
                && (ended.answeredRanks == null
                        || (ended.answeredRanks.fits(KvPeer.of(session).ranks())
                                && !ended.answeredRanks.intersects(
                                        KvPeer.of(session).ranks())));
    }

    /** How a transfer ended that the session had; or any, if no session had it. */
    Optional<String> endFor(Session session, TransferKey transfer) {
        return Optional.ofNullable(byTransfer.get(transfer)).flatMap(ended -> ended.knownTo(session));
    }

    /** Whether such a transfer has ended. */
    boolean knows(TransferKey transfer) {
        return byTransfer.containsKey(transfer);
    }

    /** Whether the last transfer that has ended under this id had another prompt. */
    boolean knowsOtherPrompt(TransferKey transfer) {
        TransferKey last = lastById.get(transfer.id());
        return last != null && !last.mayMean(transfer);
    }
}
