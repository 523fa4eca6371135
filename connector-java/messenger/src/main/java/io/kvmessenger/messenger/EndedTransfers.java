package io.kvmessenger.messenger;

import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * How recent transfers ended, and which words of decoders they still owed when they did. An id may be used again: what is
 * remembered here refuses nothing, it explains, and tells the last word of an old life from the first of a new one.
 *
 * <p>Owned by the messenger's thread.
 */
final class EndedTransfers {
    /** @param links of the sessions that had grants of it; other sessions are told nothing of it */
    private record Ended(
            String sentence, String digest, boolean aborted, EngineRanks heardOf, Set<Long> links, long endedNs) {
        Ended withWordOf(EngineRanks ranks) {
            return new Ended(sentence, digest, aborted, EngineRanks.copyOf(ranks), links, endedNs);
        }
    }

    private final Map<String, Ended> byTransfer = new BoundedMemory<>(ProtocolLimits.ENDED_TRANSFERS_MAX);
    private final long memoryNs;

    /** @param memoryNs how long a decoder's word may be on its way */
    EndedTransfers(long memoryNs) {
        this.memoryNs = memoryNs;
    }

    void remember(Prefill prefill, long nowNs) {
        String sentence = prefill.sent() || !prefill.stopped ? "it was sent, or given up, already" : prefill.stopReason;
        Set<Long> links = prefill.deliveries.stream()
                .map(delivery -> delivery.grant.session().link)
                .collect(Collectors.toSet());
        boolean aborted = prefill.stopped && prefill.stopCode == Reason.PREFILL_ABORTED;
        byTransfer.put(
                prefill.transferId,
                new Ended(sentence, prefill.promptDigest, aborted, prefill.answeredRanks(), links, nowNs));
    }

    /**
     * Whether a grant may be meant for the life that has ended: the engine gave that prompt up, and the decoder's word was on
     * its way; or the grant brings a prompt that another messenger of its decoder has brought before.
     */
    boolean mayOwe(PageGrant grant, EngineCommand.Prompt prompt) {
        Ended ended = byTransfer.get(grant.transferId());
        return ended != null && (!prompt.absent() || (ended.aborted && ended.digest.equals(grant.promptDigest())));
    }

    /** What to tell a decoder whose word came too late. */
    Reason reasonOf(String transferId) {
        Ended ended = byTransfer.get(transferId);
        return ended != null && ended.aborted ? Reason.PREFILL_ABORTED : Reason.EXPIRED;
    }

    /** How a transfer of this id ended that the session had; or any, if no session had it. */
    Optional<String> endFor(Session session, String transferId) {
        return Optional.ofNullable(byTransfer.get(transferId))
                .filter(ended -> ended.links.isEmpty() || ended.links.contains(session.link))
                .map(Ended::sentence);
    }

    /**
     * Whether the session's word on a transfer is the one that an ended life was owed: each rank speaks once in each life.
     * Asked once for each word.
     */
    boolean takeOwed(Session session, String transferId, long nowNs) {
        if (!owes(session, transferId, nowNs)) {
            return false;
        }
        Ended ended = byTransfer.get(transferId);
        if (ended.heardOf == null) {
            byTransfer.put(transferId, ended.withWordOf(session.peerRanks));
        } else {
            ended.heardOf.add(session.peerRanks);
        }
        return true;
    }

    /** Whether a life has ended, not long ago, without a word of the session's ranks. */
    boolean owes(Session session, String transferId, long nowNs) {
        Ended ended = byTransfer.get(transferId);
        return ended != null
                && nowNs - ended.endedNs < memoryNs
                && (ended.heardOf == null
                        || (ended.heardOf.fits(session.peerRanks) && !ended.heardOf.intersects(session.peerRanks)));
    }

    /** Whether a transfer of this id has ended. */
    boolean knows(String transferId) {
        return byTransfer.containsKey(transferId);
    }
}
