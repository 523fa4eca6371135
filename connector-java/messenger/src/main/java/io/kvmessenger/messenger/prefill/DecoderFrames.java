package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Expect;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.PromptWire;
import io.kvmessenger.messenger.wire.Rejected;
import io.kvmessenger.transfer.WindowArea;
import java.util.Optional;
import java.util.Set;

/**
 * Handles decoders' frames about transfers, and finds the attempt of a prompt that each frame answers: a running one,
 * one that has ended, or one to come. Each rank gives one answer per attempt, a grant or a decline.
 *
 * <p>Owned by the messenger's thread. It neither begins nor stops prefills; those that may be over go to
 * {@link PrefillEnds}.
 */
final class DecoderFrames {
    private final Prefills prefills;
    private final WaitingGrants waiting;
    private final EndedTransfers ended;
    private final Expectations expectations;
    private final Rejections rejections;
    private final Fences fences;
    private final Deliveries deliveries;
    private final Replies replies;
    private final LayerWriter writer;
    private final Tally tally;
    private final NanoClock clock;
    private final ProtocolLimits limits;
    private final PrefillEnds ends;

    DecoderFrames(
            Prefills prefills,
            WaitingGrants waiting,
            EndedTransfers ended,
            Fences fences,
            Deliveries deliveries,
            Replies replies,
            LayerWriter writer,
            Prefiller.Ports ports,
            ProtocolLimits limits,
            PrefillEnds ends) {
        this.prefills = prefills;
        this.waiting = waiting;
        this.ended = ended;
        this.fences = fences;
        this.deliveries = deliveries;
        this.replies = replies;
        this.writer = writer;
        this.tally = ports.tally();
        this.clock = ports.clock();
        this.limits = limits;
        this.ends = ends;
        this.expectations =
                new Expectations(limits.unheardLimitNs(), limits.capacities().expectedTransfersMax());
        this.rejections =
                new Rejections(limits.rejectedWaitNs(), limits.capacities().endedTransfersMax());
    }

    /** The decoder will send a grant or a decline, however long its queue is. */
    void onExpect(DecoderSession session, Expect expect) {
        TransferKey transfer = new TransferKey(expect.getTransferId(), expect.getPromptDigest());
        expectations.add(session, transfer, clock.nowNs());
        asked(transfer);
        Prefill next = prefills.awaiting(transfer, session.peerCache().ranks());
        boolean computed =
                next == null ? !prefills.any(transfer) && ended.owes(session, transfer, clock.nowNs()) : next.ended();
        if (computed) {
            replies.prefilled(session, transfer);
        }
    }

    /**
     * Releases decoders that expect prompts which never came; a fetch that they send now is bounded by its own limit.
     */
    int reportOverdue(long nowNs) {
        int reported = 0;
        for (Expectations.Announcement announcement : expectations.takeOverdue(nowNs)) {
            if (prefills.awaiting(
                            announcement.transfer(),
                            announcement.session().peerCache().ranks())
                    == null) {
                replies.prefilled(announcement.session(), announcement.transfer());
                reported++;
            }
        }
        return reported;
    }

    long earliestNs(long latestNs) {
        return expectations.earliestNs(latestNs);
    }

    /** A request under this id is not at its decoder any more. It may come again, and others may have the same id. */
    void onRejected(Rejected frame) {
        long nowNs = clock.nowNs();
        rejections.add(frame.getTransferId(), nowNs);
        for (Prefill prefill : prefills.all()) {
            if (prefill.answeredRanks == null && !expected(prefill) && rejections.names(prefill.transfer(), nowNs)) {
                prefill.rejected = true;
                long deadlineNs = nowNs + limits.rejectedWaitNs();
                if (prefill.ended() && deadlineNs - prefill.grantDeadlineNs < 0) {
                    prefills.expireAt(prefill, deadlineNs);
                }
            }
        }
    }

    /** Whether a request of a transfer that begins now was rejected before. */
    boolean rejected(TransferKey transfer) {
        return rejections.names(transfer, clock.nowNs());
    }

    /** A decoder's engine has a request for the transfer: its prefill waits as if no request had been rejected. */
    private void asked(TransferKey transfer) {
        rejections.remove(transfer);
        for (Prefill prefill : prefills.meantBy(transfer)) {
            if (prefill.rejected) {
                prefill.rejected = false;
                prefills.expireAt(prefill, clock.nowNs() + limits.grantWaitNs());
            }
        }
    }

    /** Removes the session's announcement of this transfer, if there is one. */
    private void answered(DecoderSession session, TransferKey transfer) {
        expectations.remove(session, transfer);
        prefills.expectLess(transfer);
    }

    /** Tells the decoders that expect a prompt that the engine has ended it. */
    void reportPrefilled(Prefill prefill) {
        expectations.of(prefill.transfer()).forEach(session -> replies.prefilled(session, prefill.transfer()));
    }

    /** Whether a ready session has announced that it will answer this prompt. */
    boolean expected(Prefill prefill) {
        return expectations.any(prefill.transfer());
    }

    /**
     * Applies to a prefill that has just begun the answers that its decoders sent earlier. If all of them declined, the
     * prefill ends and the engine is notified.
     */
    void match(Prefill prefill) {
        Optional<WaitingGrants.Dismissal> dismissed = waiting.takeDismissed(prefill.transfer(), clock.nowNs());
        dismissed.ifPresent(dismissal -> prefill.addAnswer(dismissal.ranks(), dismissal.needing()));
        for (Optional<PageGrant> next = nextFor(prefill); next.isPresent(); next = nextFor(prefill)) {
            join(prefill, next.get());
        }
        dismissed.ifPresent(dismissal -> endIfUnwanted(prefill, dismissal.sentence()));
        ends.settle(prefill);
    }

    private Optional<PageGrant> nextFor(Prefill prefill) {
        return waiting.takeFor(prefill, clock.nowNs());
    }

    void onGrant(DecoderSession session, Grant wire, long nowNs) {
        tally.add(MessengerMetric.GRANTS_RECEIVED, 1);
        PageGrant grant = PageGrant.of(session, wire, nowNs);
        answered(session, grant.transfer());
        asked(grant.transfer());
        EngineCommand.Prompt prompt = PromptWire.decode(wire.getPrompt());
        String unfit = writer.unfit(grant);
        Prefill prefill = prefills.forGrant(grant);
        if (!unfit.isEmpty()) {
            replies.decline(grant, Reason.GRANT_UNFIT, unfit);
        } else if (!waiting.shutDownReason().isEmpty()) {
            replies.decline(grant, Reason.SHUTTING_DOWN, waiting.shutDownReason());
        } else if (prefill != null) {
            join(prefill, grant);
        } else {
            answerFromMemory(grant, prompt, nowNs);
        }
    }

    /** Handles a grant that is for no prefill here, but for one that has ended or one to come. */
    private void answerFromMemory(PageGrant grant, EngineCommand.Prompt prompt, long nowNs) {
        boolean mayBeLate = prefills.mayBeSeveral(grant.transfer()) || !prefills.any(grant.transfer());
        if (mayBeLate
                && ended.answerTo(grant, prompt, nowNs) instanceof EndedTransfers.Answer.Late(var reason, var how)) {
            replies.decline(grant, reason, how);
        } else {
            waiting.await(grant, prompt);
        }
    }

    private void join(Prefill prefill, PageGrant grant) {
        if (prefill.stopped()) {
            prefill.addAnswer(grant.ranks(), grant.session().peerCache().needingRanks()); // its answer in this attempt
            replies.decline(
                    grant,
                    prefill.stop().reason() == Reason.EXPIRED ? Reason.EXPIRED : Reason.PREFILL_ABORTED,
                    prefill.stop().sentence());
        } else if (!prefill.mayAnswer(grant.ranks())) {
            replies.decline(
                    grant,
                    Reason.GRANT_UNFIT,
                    "transfer " + grant.transferId() + " was granted or given up already by "
                            + prefill.answeredBy() + ", the ranks of "
                            + grant.session().peerName() + " among them or of another engine");
        } else if (!prefill.difference(grant).isEmpty()) {
            replies.decline(grant, Reason.GRANT_UNFIT, prefill.difference(grant));
        } else {
            begin(prefill, grant);
        }
    }

    private void begin(Prefill prefill, PageGrant grant) {
        WindowArea area;
        try {
            area = LayerWriter.area(grant);
        } catch (IllegalArgumentException e) {
            replies.decline(grant, Reason.GRANT_UNFIT, e.getMessage());
            return;
        }
        prefill.addAnswer(grant.ranks(), grant.session().peerCache().needingRanks());
        prefills.touch(prefill);
        deliveries.begin(prefill, grant, area);
    }

    void onCancel(DecoderSession session, Cancel cancel) {
        TransferKey transfer = new TransferKey(cancel.getTransferId(), cancel.getPromptDigest());
        if (waiting.cancel(session, transfer.id(), cancel.getGrantId(), clock.nowNs())) {
            replies.confirmUnserved(session, cancel.getGrantId());
            return;
        }
        if (fences.anyHolds(session, cancel.getGrantId())) {
            dismiss(session, transfer, WaitingGrants.CANCELLED); // the prompt's next attempt will not be granted
            return; // preempted with writes in flight: the cancel is confirmed when the last has completed
        }
        Delivery delivery = prefills.find(session, transfer, cancel.getGrantId());
        if (delivery != null && !delivery.sent()) {
            deliveries.stop(delivery, Reason.REASON_UNSPECIFIED, WaitingGrants.CANCELLED);
            deliveries.settle(delivery);
            return;
        }
        replies.confirmSent(session, cancel.getGrantId());
        if (delivery == null && mayHaveCrossedAPreemption(transfer)) {
            dismiss(session, transfer, WaitingGrants.CANCELLED); // the next attempt need not wait
        }
    }

    /**
     * Whether a cancel that matches no delivery may have crossed a preemption. Where several requests may share the
     * transfer, it is more likely to be for one that has ended.
     */
    private boolean mayHaveCrossedAPreemption(TransferKey transfer) {
        return !ended.knows(transfer) || (prefills.any(transfer) && !prefills.mayBeSeveral(transfer));
    }

    void onDecline(DecoderSession session, Decline decline) {
        TransferKey transfer = new TransferKey(decline.getTransferId(), decline.getPromptDigest());
        answered(session, transfer);
        if (prefills.any(transfer) || !ended.takeOwed(session, transfer, clock.nowNs())) {
            waiting.enqueue(transfer, session.peerCache().ranks(), PromptWire.decode(decline.getPrompt()));
            dismiss(session, transfer, WaitingGrants.DECLINED);
        } // else the prompt, sent by another messenger of this decoder, was computed and given up since
    }

    /** Records that the ranks of a decoder's messenger need nothing (more) of a transfer and will not grant it. */
    private void dismiss(DecoderSession session, TransferKey transfer, String sentence) {
        Prefill prefill = prefills.awaiting(transfer, session.peerCache().ranks());
        if (prefill != null) {
            prefill.addAnswer(session.peerCache().ranks(), session.peerCache().needingRanks());
            endIfUnwanted(prefill, sentence);
            ends.settle(prefill);
        } else if (prefills.mayBeSeveral(transfer) || !prefills.any(transfer)) {
            waiting.dismiss(transfer, session, sentence, clock.nowNs());
        }
    }

    private void endIfUnwanted(Prefill prefill, String sentence) {
        if (!prefill.stopped() && prefill.deliveries.isEmpty() && !prefill.awaitsGrants()) {
            prefill.unwanted = sentence;
        }
        deliveries.reportIfNothingToSend(prefill, sentence);
    }

    /** Records that the served ranks will not grant the prompt's next attempt. */
    void dismissServed(Prefill prefill) {
        if (prefill.answeredRanks != null) {
            waiting.dismiss(
                    prefill.transfer(),
                    prefill.servedRanks(),
                    prefill.requiredRanks,
                    WaitingGrants.SERVED,
                    clock.nowNs());
        }
    }

    /**
     * A decoder's fetches have failed with its session: prompts that they asked for, and that have not begun, are not
     * waited for. What it expected is kept as if its prefill had ended now, since the decoder may reconnect.
     */
    void onEnded(DecoderSession session, String reason) {
        waiting.drop(session, reason, clock.nowNs());
        fences.owedTo(session).forEach(transfer -> dismiss(session, transfer, reason));
        long deadlineNs = clock.nowNs() + limits.grantWaitNs();
        Set<TransferKey> expected = expectations.drop(session);
        for (Prefill prefill : prefills.all()) {
            if (prefill.ended() && expected.contains(prefill.transfer())) {
                prefills.expireAt(prefill, deadlineNs);
            }
        }
    }
}
