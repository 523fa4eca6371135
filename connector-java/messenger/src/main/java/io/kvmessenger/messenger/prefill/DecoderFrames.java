package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.Ask;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Expect;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.PromptWire;
import io.kvmessenger.messenger.wire.Rejected;
import io.kvmessenger.transfer.WindowArea;
import java.util.List;
import java.util.Optional;

/**
 * Handles decoders' frames about transfers, and finds the attempt of a prompt that each frame answers: a running one,
 * one that has ended, or one to come. Each rank gives one answer per attempt, a grant or a decline.
 *
 * <p>Owned by the messenger's thread. It neither begins nor stops prefills; those that may be over go to
 * {@link PrefillEnds}.
 */
final class DecoderFrames {
    private static final String NO_INTAKE =
            "the request came to the decoder only and this prefiller does not know its own engine's address: "
                    + "set engine_api_url on the prefiller";

    private static final String CANCELLED = "the decoder cancelled the transfer";
    private static final String DECLINED = "the decoder declined the transfer";
    private static final String SERVED = "the decoder has had all of the transfer, or wants nothing more of it";

    private final Meetings meetings;
    private final Fences fences;
    private final Deliveries deliveries;
    private final Replies replies;
    private final LayerWriter writer;
    private final PrefillEnds ends;
    private final PeerAsks asks;
    private final EngineIntake intake;
    private final EngineEvents engine;
    private final Tally tally;
    private final NanoClock clock;

    /** Why no grant is accepted any more; empty while grants are accepted. */
    private String shutDownReason = "";

    DecoderFrames(
            Meetings meetings,
            Fences fences,
            Deliveries deliveries,
            Replies replies,
            LayerWriter writer,
            PrefillEnds ends,
            PeerAsks asks,
            KvPorts ports) {
        this.meetings = meetings;
        this.fences = fences;
        this.deliveries = deliveries;
        this.replies = replies;
        this.writer = writer;
        this.ends = ends;
        this.asks = asks;
        this.intake = ports.intake();
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.clock = ports.clock();
    }

    /** The decoder will send a grant or a decline, however long its queue is. */
    void onExpect(DecoderSession session, Expect expect) {
        TransferKey transfer = new TransferKey(expect.getTransferId(), expect.getPromptDigest());
        meetings.expect(session, transfer, clock.nowNs());
        meetings.asked(transfer, clock.nowNs());
        Meeting meeting = meetings.of(transfer);
        Prefill next = meeting.awaiting(transfer, session);
        boolean computed = next == null
                ? !meeting.has(transfer) && meetings.memory.owes(session, transfer, clock.nowNs())
                : next.ended();
        if (computed) {
            replies.prefilled(session, transfer);
        }
    }

    /**
     * Releases a decoder that expects a prompt which never came; a fetch that it sends now is bounded by its own limit.
     * Returns the number of replies.
     */
    int reportOverdue(Announcement overdue) {
        if (meetings.of(overdue.transfer).awaiting(overdue.transfer, overdue.session) != null) {
            meetings.expectLonger(overdue, clock.nowNs()); // its end is reported, unless it ends as another attempt
            return 0;
        }
        replies.prefilled(overdue.session, overdue.transfer);
        return 1;
    }

    void onAsk(DecoderSession session, Ask ask) {
        asks.onAsk(session, ask);
    }

    /** A request under this id is not at its decoder any more. It may come again, and others may have the same id. */
    void onRejected(Rejected frame) {
        meetings.reject(frame.getTransferId(), clock.nowNs());
    }

    /** Tells the decoders that expect a prompt that the engine has ended it. */
    void reportPrefilled(Prefill prefill) {
        meetings.of(prefill.transfer())
                .expected(prefill)
                .forEach(announcement -> replies.prefilled(announcement.session, announcement.transfer));
    }

    /**
     * Applies to a prefill that has just begun the answers that its decoders sent earlier. If all of them declined, the
     * prefill ends and the engine is notified.
     */
    void match(Prefill prefill) {
        Optional<TransferMemory.Dismissal> dismissed = meetings.memory.takeDismissed(prefill.transfer(), clock.nowNs());
        dismissed.ifPresent(dismissal -> prefill.addAnswer(dismissal.ranks(), dismissal.needing()));
        for (Optional<PageGrant> next = nextFor(prefill); next.isPresent(); next = nextFor(prefill)) {
            join(prefill, next.get());
        }
        dismissed.ifPresent(dismissal -> endIfUnwanted(prefill, dismissal.sentence()));
        ends.settle(prefill);
    }

    private Optional<PageGrant> nextFor(Prefill prefill) {
        return meetings.takeFor(prefill, clock.nowNs());
    }

    void onGrant(DecoderSession session, Grant wire, long nowNs) {
        tally.add(MessengerMetric.GRANTS_RECEIVED, 1);
        PageGrant grant = PageGrant.of(session, wire, nowNs);
        TransferKey transfer = grant.transfer();
        meetings.answered(session, transfer);
        meetings.asked(transfer, nowNs);
        EngineCommand.Prompt prompt = PromptWire.decode(wire.getPrompt());
        Prefill prefill = meetings.of(transfer).forGrant(grant);
        String unfit = writer.unfit(grant, prefill == null || prefill.isOffer()); // a part of an offer may be to come
        if (!unfit.isEmpty()) {
            replies.decline(grant, Reason.GRANT_UNFIT, unfit);
        } else if (!shutDownReason.isEmpty()) {
            replies.decline(grant, Reason.SHUTTING_DOWN, shutDownReason);
        } else if (prefill != null) {
            join(prefill, grant);
        } else {
            takeLate(grant, prompt, nowNs)
                    .ifPresentOrElse(
                            end -> replies.decline(grant, end.reason(), end.sentence()), () -> await(grant, prompt));
        }
        meetings.compareLater(transfer.id(), nowNs);
    }

    /** How the attempt has ended that a grant without a prefill is for; empty if it is for one to come. */
    private Optional<Stop> takeLate(PageGrant grant, EngineCommand.Prompt prompt, long nowNs) {
        Meeting meeting = meetings.of(grant.transfer());
        boolean mayBeLate = meeting.mayBeSeveral(grant.transfer()) || !meeting.has(grant.transfer());
        return mayBeLate ? meetings.memory.takeLate(grant, prompt, nowNs) : Optional.empty();
    }

    /** Keeps a grant; if it carries the prompt's tokens, the prompt is enqueued in this prefiller's own engine. */
    private void await(PageGrant grant, EngineCommand.Prompt prompt) {
        if (!prompt.absent() && !intake.takesPrompts()) {
            replies.decline(grant, Reason.NEVER_CAME, NO_INTAKE);
            return;
        }
        enqueue(grant.transfer(), grant.session(), prompt);
        String refusal = meetings.refusalOf(grant);
        if (refusal.isEmpty()) {
            meetings.await(grant);
        } else {
            replies.decline(grant, Reason.GRANT_UNFIT, refusal);
        }
    }

    /** Enqueues a prompt once per request, though each of the decoder's messengers may send it. */
    private void enqueue(TransferKey transfer, DecoderSession session, EngineCommand.Prompt prompt) {
        if (prompt.absent() || !shutDownReason.isEmpty()) {
            return; // an engine that shuts down begins no prompt; its other messengers decline the grants for it
        }
        if (!intake.takesPrompts()) {
            engine.log(EngineLog.Level.ERROR, "transfer " + transfer.id() + ": " + NO_INTAKE);
            return;
        }
        boolean severalAllowed = meetings.of(transfer).mayBeSeveral(transfer);
        if (meetings.memory.bring(transfer, session.peerCache().ranks(), severalAllowed)) {
            intake.enqueue(transfer, prompt);
        }
    }

    /** The engine rejected a prompt that a decoder has sent. */
    void onEnqueueFailed(TransferKey transfer, String reason) {
        asks.onRefused(transfer, reason);
        meetings.memory.forgetBrought(transfer);
        for (PageGrant grant : List.copyOf(meetings.of(transfer).waiting)) {
            if (grant.transfer().equals(transfer)) {
                meetings.remove(grant);
                replies.decline(grant, Reason.NEVER_CAME, reason);
            }
        }
    }

    /** Declines a due grant, unless it may wait longer. Returns the number of grants declined. */
    int expire(PageGrant grant, long nowNs, long namedPromptsNs) {
        Optional<String> late = meetings.late(grant, nowNs, namedPromptsNs);
        late.ifPresent(sentence -> decline(grant, sentence));
        return late.isPresent() ? 1 : 0;
    }

    /** Declines a waiting grant whose prompt will not come. */
    void decline(PageGrant grant, String sentence) {
        meetings.memory.forgetOneBrought(grant.transfer());
        meetings.withdraw(grant, sentence, clock.nowNs());
        replies.decline(grant, Reason.NEVER_CAME, sentence);
    }

    /** Declines the grants of requests whose legs name different prompts. */
    void decline(Meeting.Contradiction legs) {
        if (!legs.grants().isEmpty()) {
            engine.log(EngineLog.Level.WARNING, legs.sentence());
            legs.grants().forEach(grant -> decline(grant, legs.sentence()));
        }
    }

    /** Declines all waiting grants, those of one id together; later ones are declined on arrival. */
    void shutDown(String sentence) {
        shutDownReason = sentence;
        asks.shutDown();
        for (PageGrant oldest : List.copyOf(meetings.waiting())) {
            for (PageGrant grant : List.copyOf(meetings.of(oldest.transfer()).waiting)) {
                meetings.remove(grant);
                replies.decline(grant, Reason.SHUTTING_DOWN, sentence);
            }
        }
    }

    /** Whether a cached prefix is, or was, offered under this transfer, as far as that is remembered. */
    boolean hasOffered(TransferKey transfer) {
        return meetings.of(transfer).has(transfer) || meetings.memory.hasEnded(transfer);
    }

    /** No part of an offer will come that was declined here before. */
    void forgetDismissed(TransferKey transfer) {
        meetings.memory.takeDismissed(transfer, clock.nowNs());
    }

    private void join(Prefill prefill, PageGrant grant) {
        if (!prefill.isFor(grant.session())) {
            replies.decline(
                    grant, Reason.GRANT_UNFIT, "transfer " + grant.transferId() + " was offered to another engine");
        } else if (prefill.stopped()) {
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
        } else if (!writer.unfitContext(grant, prefill.isOffer()).isEmpty()) {
            replies.decline(grant, Reason.GRANT_UNFIT, writer.unfitContext(grant, prefill.isOffer()));
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
        meetings.prefills.touch(prefill);
        deliveries.begin(prefill, grant, area);
    }

    void onCancel(DecoderSession session, Cancel cancel) {
        TransferKey transfer = new TransferKey(cancel.getTransferId(), cancel.getPromptDigest());
        Meeting meeting = meetings.of(transfer);
        Optional<PageGrant> waiting = meeting.waiting(session, cancel.getGrantId());
        if (waiting.isPresent()) {
            meetings.withdraw(waiting.get(), CANCELLED, clock.nowNs());
            replies.confirmUnserved(session, cancel.getGrantId());
            return;
        }
        if (fences.anyHolds(session, cancel.getGrantId())) {
            dismiss(session, transfer, CANCELLED); // the prompt's next attempt will not be granted
            return; // preempted with writes in flight: the cancel is confirmed when the last has completed
        }
        Delivery delivery = meeting.find(session, cancel.getGrantId());
        if (delivery != null && !delivery.sent()) {
            deliveries.stop(delivery, Reason.REASON_UNSPECIFIED, CANCELLED);
            deliveries.settle(delivery);
            return;
        }
        replies.confirmSent(session, cancel.getGrantId());
        if (delivery == null && mayHaveCrossedAPreemption(meeting, transfer)) {
            dismiss(session, transfer, CANCELLED); // the next attempt need not wait
        }
    }

    /**
     * Whether a cancel that matches no delivery may have crossed a preemption. Where several requests may share the
     * transfer, it is more likely to be for one that has ended.
     */
    private boolean mayHaveCrossedAPreemption(Meeting meeting, TransferKey transfer) {
        return !meetings.memory.hasEnded(transfer) || (meeting.has(transfer) && !meeting.mayBeSeveral(transfer));
    }

    void onDecline(DecoderSession session, Decline decline) {
        TransferKey transfer = new TransferKey(decline.getTransferId(), decline.getPromptDigest());
        if (asks.drop(session, transfer)) {
            // the engine's answer, when it comes, finds no question; at another messenger than the first, a part comes
            meetings.dismiss(transfer, session, DECLINED, clock.nowNs());
            return;
        }
        meetings.answered(session, transfer);
        Meeting meeting = meetings.of(transfer);
        if (meeting.has(transfer) || !meetings.memory.takeOwed(session, transfer, clock.nowNs())) {
            enqueue(transfer, session, PromptWire.decode(decline.getPrompt()));
            dismiss(session, transfer, DECLINED);
        } // else the prompt, sent by another messenger of this decoder, was computed and given up since
    }

    /** Records that the ranks of a decoder's messenger need nothing (more) of a transfer and will not grant it. */
    private void dismiss(DecoderSession session, TransferKey transfer, String sentence) {
        Meeting meeting = meetings.of(transfer);
        Prefill prefill = meeting.awaiting(transfer, session);
        if (prefill != null) {
            prefill.addAnswer(session.peerCache().ranks(), session.peerCache().needingRanks());
            endIfUnwanted(prefill, sentence);
            ends.settle(prefill);
        } else if (meeting.mayBeSeveral(transfer) || !meeting.has(transfer)) {
            meetings.dismiss(transfer, session, sentence, clock.nowNs());
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
            meetings.memory.dismiss(
                    prefill.transfer(), prefill.servedRanks(), prefill.requiredRanks, SERVED, clock.nowNs());
        }
    }

    /** Whether no grant, question or preempted prompt of the session awaits anything here. */
    boolean atRest(DecoderSession session) {
        return !asks.anyOf(session)
                && !fences.anyOf(session)
                && meetings.waiting().stream().noneMatch(grant -> grant.session() == session);
    }

    /** A decoder's fetches have failed with its session: prompts that they asked for are not waited for. */
    void onEnded(DecoderSession session, String reason) {
        meetings.sessionEnded(session, reason, clock.nowNs());
        asks.onEnded(session);
        for (Prefill offer : meetings.prefills.offeredTo(session)) {
            offer.stop(new Stop(Reason.PATH_LOST, reason));
            ends.settle(offer);
        }
        fences.owedTo(session).forEach(transfer -> dismiss(session, transfer, reason));
    }
}
