package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * What is remembered of transfers without a {@link Meeting}: the prompts that decoders have sent, what they dismissed or
 * rejected before a prefill began, and how recent transfers ended. Each kind is bounded by itself, so that a flood of one
 * does not evict another. Other prompts under the same id are other transfers.
 *
 * <p>Owned by the messenger's thread.
 */
final class TransferMemory {
    /** Limit on concurrent requests of one prompt under one id; the engine is not asked to compute further ones. */
    private static final int SAME_MAX = 1024;
    /** In the ids of a list of prompts, before the index of each but the first. */
    private static final char PLACE = '#';

    private static final String GIVEN_UP = "its pages were given up already";

    private final ProtocolLimits limits;
    /** For each request that the engine was asked to compute, the ranks whose messengers have sent its prompt. */
    private final Map<TransferKey, List<EngineRanks>> brought;

    private final Map<TransferKey, Dismissal> dismissed;
    /** By the ids of requests whose prefill leg may still be on its way; their prompts are unknown. */
    private final Map<String, Long> rejectedUntilNs;

    private final Map<TransferKey, End> ends;
    /** The transfer that ended last under each id. */
    private final Map<String, TransferKey> endedLast;

    /**
     * What ranks of one decoder have declined before a prefill began: it will not wait for their grants.
     *
     * @param ranks those that need nothing (more)
     * @param needing all ranks of that decoder that need something of this prefiller
     * @param sentence why, for the engine that begins such a prefill
     * @param untilNs when it expires: its request is long over then, and the id may be reused
     */
    record Dismissal(EngineRanks ranks, EngineRanks needing, String sentence, long untilNs) {
        private boolean isValid(long nowNs) {
            return nowNs - untilNs < 0;
        }
    }

    /**
     * As an id may be reused, an end rejects nothing: it explains, and distinguishes a late answer to an ended attempt
     * from the first answer to a new one.
     *
     * @param answered ranks that have answered the attempt; null if none has
     * @param offered it was a cached prefix: its id names one question, so no attempt follows
     * @param links of the sessions that granted it; the sentence is not disclosed to other sessions
     * @param answersUntilNs how long answers may still be on their way
     */
    private record End(
            String sentence,
            boolean aborted,
            boolean offered,
            EngineRanks answered,
            Set<Long> links,
            long answersUntilNs) {
        boolean owes(EngineRanks ranks, long nowNs) {
            return nowNs - answersUntilNs < 0
                    && (answered == null || (answered.fits(ranks) && !answered.intersects(ranks)));
        }

        End withAnswerOf(EngineRanks ranks) {
            EngineRanks all = EngineRanks.copyOf(ranks);
            if (answered != null) {
                all.add(answered);
            }
            return new End(sentence, aborted, offered, all, links, answersUntilNs);
        }
    }

    TransferMemory(ProtocolLimits limits) {
        Capacities capacities = limits.capacities();
        this.limits = limits;
        // one that waits is not forgotten: its decoder's other messengers bring the prompt too
        brought = new BoundedMap<>(capacities.grantsWaitingMax() + capacities.endedTransfersMax());
        dismissed = new BoundedMap<>(capacities.endedTransfersMax());
        rejectedUntilNs = new BoundedMap<>(capacities.endedTransfersMax());
        ends = new BoundedMap<>(capacities.endedTransfersMax());
        endedLast = new BoundedMap<>(capacities.endedTransfersMax());
    }

    // ---- prompts sent by decoders

    /**
     * Records a prompt sent by the messenger of some ranks: each messenger of a decoder's engine sends the prompt of
     * each request. Returns whether it is the first of a request.
     *
     * @param severalAllowed whether a prompt sent again by the same ranks is another request
     */
    boolean bring(TransferKey transfer, EngineRanks ranks, boolean severalAllowed) {
        List<EngineRanks> requests = brought.computeIfAbsent(transfer, unknown -> new ArrayList<>(1));
        for (EngineRanks bringers : requests) {
            if (!severalAllowed) {
                return false;
            }
            if (bringers.fits(ranks) && !bringers.intersects(ranks)) {
                bringers.add(ranks);
                return false;
            }
        }
        return requests.size() < SAME_MAX && requests.add(EngineRanks.copyOf(ranks));
    }

    /** Whether the engine has been asked to compute the prompt. */
    boolean isBrought(TransferKey transfer) {
        return brought.containsKey(transfer);
    }

    /** Removes one request that has ended or will not come; the prompt, sent again, is a new request. */
    void forgetOneBrought(TransferKey transfer) {
        List<EngineRanks> requests = brought.get(transfer);
        if (requests != null) {
            requests.removeFirst();
            if (requests.isEmpty()) {
                brought.remove(transfer);
            }
        }
    }

    void forgetBrought(TransferKey transfer) {
        brought.remove(transfer);
    }

    // ---- what will not be granted

    /** Records that ranks {@code done}, of the ranks {@code needing} something, will not grant it. */
    void dismiss(TransferKey transfer, EngineRanks done, EngineRanks needing, String sentence, long nowNs) {
        if (done.isEmpty()) {
            return;
        }
        EngineRanks ranks = EngineRanks.copyOf(done);
        Dismissal known = dismissed.get(transfer);
        if (known != null && known.isValid(nowNs) && known.ranks.fits(done)) {
            ranks.add(known.ranks);
        }
        dismissed.put(transfer, new Dismissal(ranks, needing, sentence, nowNs + limits.grantWaitNs()));
    }

    /** Ranks have granted what they may have dismissed before. */
    void granted(TransferKey transfer, EngineRanks ranks) {
        Dismissal dismissal = dismissed.get(transfer);
        if (dismissal != null) {
            dismissal.ranks.remove(ranks);
        }
    }

    /** Takes what was dismissed before the prefill that begins now. */
    Optional<Dismissal> takeDismissed(TransferKey transfer, long nowNs) {
        return Optional.ofNullable(dismissed.remove(transfer))
                .filter(dismissal -> dismissal.isValid(nowNs) && !dismissal.ranks.isEmpty());
    }

    /** A decoder has rejected a request under this id. Of a list of prompts it names the first. */
    void reject(String id, long untilNs) {
        rejectedUntilNs.put(id, untilNs);
    }

    /** A request for the transfer exists. */
    void forgetRejection(TransferKey transfer) {
        rejectedUntilNs.remove(transfer.id());
        rejectedUntilNs.remove(firstOfList(transfer.id()));
    }

    boolean isRejected(TransferKey transfer, long nowNs) {
        return isRejected(transfer.id(), nowNs) || isRejected(firstOfList(transfer.id()), nowNs);
    }

    private boolean isRejected(String id, long nowNs) {
        Long untilNs = rejectedUntilNs.get(id);
        return untilNs != null && nowNs - untilNs < 0;
    }

    private static String firstOfList(String id) {
        int place = id.lastIndexOf(PLACE);
        return place > 0 ? id.substring(0, place) : id;
    }

    // ---- ends

    void ended(Prefill prefill, long nowNs) {
        String sentence = prefill.sent() || !prefill.stopped()
                ? "it was sent, or given up, already"
                : prefill.stop().sentence();
        Set<Long> links = prefill.deliveries.stream()
                .map(delivery -> delivery.grant.session().link)
                .collect(Collectors.toSet());
        boolean aborted = prefill.stopped() && prefill.stop().reason() == Reason.PREFILL_ABORTED;
        // no fetch, and so no answer, is known to last longer than this side's own limit
        long answersUntilNs = nowNs + Math.max(limits.grantWaitNs(), limits.fetchLimitNs());
        ends.put(
                prefill.transfer(),
                new End(sentence, aborted, prefill.isOffer(), prefill.answeredRanks(), links, answersUntilNs));
        endedLast.put(prefill.transfer().id(), prefill.transfer());
    }

    boolean hasEnded(TransferKey transfer) {
        return ends.containsKey(transfer);
    }

    /** Whether the last transfer to end under this id was of another prompt. */
    boolean anotherEnded(TransferKey transfer) {
        TransferKey last = endedLast.get(transfer.id());
        return last != null && !last.mayMean(transfer);
    }

    /** How a transfer ended, if this session granted it or no session did; else empty. */
    Optional<String> endFor(DecoderSession session, TransferKey transfer) {
        return Optional.ofNullable(ends.get(transfer))
                .filter(end -> end.links.isEmpty() || end.links.contains(session.link))
                .map(End::sentence);
    }

    /** Whether an attempt ended recently without an answer of the session's ranks. */
    boolean owes(DecoderSession session, TransferKey transfer, long nowNs) {
        End end = ends.get(transfer);
        return end != null && end.owes(session.peerCache().ranks(), nowNs);
    }

    /**
     * Takes an answer that was outstanding in an attempt that has ended: each rank answers once per attempt. Returns
     * whether it was.
     */
    boolean takeOwed(DecoderSession session, TransferKey transfer, long nowNs) {
        boolean owed = owes(session, transfer, nowNs);
        if (owed) {
            ends.put(
                    transfer,
                    ends.get(transfer).withAnswerOf(session.peerCache().ranks()));
        }
        return owed;
    }

    /**
     * Takes a grant that is meant for the ended attempt: the engine gave that prompt up while the decoder's answer was on
     * its way, or took back what it had offered, or the grant carries a prompt that another messenger of its decoder had
     * sent before. Returns how that attempt ended; empty if the grant is for one to come.
     */
    Optional<Stop> takeLate(PageGrant grant, EngineCommand.Prompt prompt, long nowNs) {
        End end = ends.get(grant.transfer());
        boolean mayBeLate = end != null && (end.aborted || end.offered || !prompt.absent());
        if (!mayBeLate || !takeOwed(grant.session(), grant.transfer(), nowNs)) {
            return Optional.empty();
        }
        return Optional.of(new Stop(
                end.aborted ? Reason.PREFILL_ABORTED : Reason.EXPIRED,
                endFor(grant.session(), grant.transfer()).orElse(GIVEN_UP)));
    }
}
