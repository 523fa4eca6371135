package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * How recent transfers ended, and which answers of decoders were outstanding then. As an id may be reused, this memory
 * rejects nothing: it explains, and distinguishes a late answer to an ended attempt from the first answer to a new one.
 * Other prompts under the same id are other transfers and are never confused with one another.
 *
 * <p>Owned by the messenger's thread.
 */
final class EndedTransfers {
    private static final String GIVEN_UP = "its pages were given up already";

    /** The answer to a grant that matches no prefill here. */
    sealed interface Answer {
        /** The grant belongs to an attempt that has ended, in this way. */
        record Late(Reason reason, String sentence) implements Answer {}

        /** The grant is for an attempt to come. */
        record None() implements Answer {}
    }

    private static final Answer NONE = new Answer.None();

    /** @param links of the sessions that granted it; the sentence is not disclosed to other sessions */
    private record Ended(String sentence, boolean aborted, EngineRanks answeredRanks, Set<Long> links, long endedNs) {
        Ended withAnswerOf(EngineRanks ranks) {
            return new Ended(sentence, aborted, EngineRanks.copyOf(ranks), links, endedNs);
        }

        Optional<String> knownTo(DecoderSession session) {
            return links.isEmpty() || links.contains(session.link) ? Optional.of(sentence) : Optional.empty();
        }
    }

    private final Map<TransferKey, Ended> byTransfer;
    /** The transfer that ended last under each id. */
    private final Map<String, TransferKey> lastById;

    private final long memoryNs;

    /**
     * A decoder's answer may arrive as long as its fetch lasts, since one of its messengers may connect that late. No
     * fetch is known to last longer than this side's own limit.
     */
    EndedTransfers(ProtocolLimits limits) {
        memoryNs = Math.max(limits.grantWaitNs(), limits.fetchLimitNs());
        byTransfer = new BoundedMap<>(limits.capacities().endedTransfersMax());
        lastById = new BoundedMap<>(limits.capacities().endedTransfersMax());
    }

    void remember(Prefill prefill, long nowNs) {
        String sentence = prefill.sent() || !prefill.stopped()
                ? "it was sent, or given up, already"
                : prefill.stop().sentence();
        Set<Long> links = prefill.deliveries.stream()
                .map(delivery -> delivery.grant.session().link)
                .collect(Collectors.toSet());
        boolean aborted = prefill.stopped() && prefill.stop().reason() == Reason.PREFILL_ABORTED;
        byTransfer.put(prefill.transfer(), new Ended(sentence, aborted, prefill.answeredRanks(), links, nowNs));
        lastById.put(prefill.transfer().id(), prefill.transfer());
    }

    /**
     * Whether a grant is meant for the ended attempt: the engine gave that prompt up while the decoder's answer was on
     * its way, or the grant carries a prompt that another messenger of its decoder had sent before. Must be called once
     * per grant.
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
     * Whether the session's answer was outstanding in an attempt that has ended: each rank answers once per attempt.
     * Must be called once per answer.
     */
    boolean takeOwed(DecoderSession session, TransferKey transfer, long nowNs) {
        if (!owes(session, transfer, nowNs)) {
            return false;
        }
        Ended ended = byTransfer.get(transfer);
        if (ended.answeredRanks == null) {
            byTransfer.put(transfer, ended.withAnswerOf(session.peerCache().ranks()));
        } else {
            ended.answeredRanks.add(session.peerCache().ranks());
        }
        return true;
    }

    /** Whether an attempt ended recently without an answer of the session's ranks. */
    boolean owes(DecoderSession session, TransferKey transfer, long nowNs) {
        Ended ended = byTransfer.get(transfer);
        return ended != null
                && nowNs - ended.endedNs < memoryNs
                && (ended.answeredRanks == null
                        || (ended.answeredRanks.fits(session.peerCache().ranks())
                                && !ended.answeredRanks.intersects(
                                        session.peerCache().ranks())));
    }

    /** How a transfer ended, if this session granted it or no session did; else empty. */
    Optional<String> endFor(DecoderSession session, TransferKey transfer) {
        return Optional.ofNullable(byTransfer.get(transfer)).flatMap(ended -> ended.knownTo(session));
    }

    /** Whether this transfer has ended. */
    boolean knows(TransferKey transfer) {
        return byTransfer.containsKey(transfer);
    }

    /** Whether the last transfer to end under this id was of another prompt. */
    boolean knowsOtherPrompt(TransferKey transfer) {
        TransferKey last = lastById.get(transfer.id());
        return last != null && !last.mayMean(transfer);
    }
}
