package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.WindowArea;
import java.util.BitSet;
import java.util.List;

/**
 * Serves grants: submits what has become readable, stops on request, and answers the decoder when no write for its
 * grant is posted and none will follow.
 *
 * <p>Owned by the messenger's thread. It begins and stops no prefill; one that may be over goes to
 * {@link PrefillEnds}.
 */
final class Deliveries {
    private final LayerWriter writer;
    private final Sessions sessions;
    private final Replies replies;
    private final EngineEvents engine;
    private final Tally tally;
    private final History history;
    private final NanoClock clock;
    private final PrefillEnds ends;
    private final SourceChecksums checksums;

    Deliveries(
            LayerWriter writer,
            Sessions sessions,
            Replies replies,
            KvPorts ports,
            ProtocolLimits limits,
            PrefillEnds ends) {
        this.writer = writer;
        this.sessions = sessions;
        this.replies = replies;
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.history = ports.history();
        this.clock = ports.clock();
        this.ends = ends;
        this.checksums = new SourceChecksums(sessions, limits.capacities().checksumsPerFrameMax(), ports.random());
    }

    /** @param area the memory that the grant lets this side write to */
    void begin(Prefill prefill, PageGrant grant, WindowArea area) {
        Delivery delivery = new Delivery(prefill, grant, writer.routesFor(grant));
        delivery.begunNs = clock.nowNs();
        tally.observe(MessengerMetric.GRANT_QUEUED_SECONDS, (delivery.begunNs - grant.receivedNs()) / 1e9);
        prefill.deliveries.add(delivery);
        try {
            writer.allow(delivery, area);
        } catch (RuntimeException | Error bug) { // without a window nothing may be submitted
            stop(delivery, Reason.PATH_LOST, "a bug in the messenger, met by a grant: " + bug);
            settle(delivery);
            throw bug;
        }
        if (prefill.announced()) {
            engine.granted(
                    prefill.request,
                    grant.promptTokens(),
                    grant.firstToken(),
                    writer.contextKinds().requestedNames(grant.context()));
        }
        advance(delivery);
    }

    /** Submits what has become readable to all decoders. Returns the number of writes accepted. */
    int advance(Prefill prefill) {
        int submitted = 0;
        for (int i = 0; i < prefill.deliveries.size(); i++) {
            submitted += advance(prefill.deliveries.get(i));
        }
        return submitted;
    }

    /** Whether a prefill has nothing to submit until its state or that of a peer changes. */
    boolean atRest(Prefill prefill) {
        if (prefill.inFlight()) {
            return false;
        }
        for (int i = 0; i < prefill.deliveries.size(); i++) {
            Delivery delivery = prefill.deliveries.get(i);
            boolean over = !delivery.open() || !delivery.grant.session().writable();
            boolean contextToSend = prefill.ended() && delivery.contextPending();
            if (!over && (contextToSend || !delivery.isExhausted())) {
                return false;
            }
        }
        return true;
    }

    /** Submits every complete page not yet submitted. Returns the number of writes accepted. */
    int advance(Delivery delivery) {
        PageGrant grant = delivery.grant;
        if (!delivery.open() || !grant.session().writable()) {
            return 0;
        }
        if (delivery.owesShares()) { // before the last write: the decoder need not wait for it once all has landed
            List<BitSet> shares = writer.sharesOf(delivery);
            replies.shares(grant, shares);
            delivery.onSharesSent(shares);
        }
        if (delivery.isExhausted()) {
            settle(delivery);
            return 0;
        }
        int submitted = 0;
        for (int route = 0; route < delivery.nextPage.length; route++) {
            int toPage = delivery.prefill.completePages(delivery.routes.get(route));
            if (delivery.nextPage[route] < toPage) {
                int joinedCount = writer.joinableCount(delivery, route, toPage);
                int result = writer.submit(delivery, route, joinedCount, toPage);
                if (result == TransferEngine.BACK_PRESSURE) {
                    tally.add(MessengerMetric.BACK_PRESSURED, 1);
                    return submitted;
                }
                if (result != TransferEngine.ACCEPTED) {
                    stop(delivery, Reason.PATH_LOST, writer.refusalOf(result, grant));
                    settle(delivery);
                    return submitted;
                }
                submitted++;
                delivery.onSubmitted(route, joinedCount, toPage, clock.nowNs());
            }
        }
        if (submitted == 0) {
            delivery.noteExhausted();
            settle(delivery);
        }
        return submitted;
    }

    /** Submits nothing more; {@link #settle} answers when the last write has completed. */
    void stop(Delivery delivery, Reason reason, String sentence) {
        if (delivery.open()) {
            delivery.stop(new Stop(reason, sentence));
            reportIfNothingToSend(delivery.prefill, sentence);
        }
    }

    /** Stops deliveries that need more from the engine than completions of writes; the others continue. */
    void stopWhatNeedsTheEngine(Prefill prefill, Reason reason, String sentence) {
        for (Delivery delivery : prefill.deliveries) {
            if (!delivery.leavesWithoutEngine()) {
                stop(delivery, reason, sentence);
                settle(delivery);
            }
        }
    }

    /** Tells the engine, if it announced the prompt, that nothing of it will be sent any more. */
    void reportIfNothingToSend(Prefill prefill, String sentence) {
        if (prefill.announcement == Prefill.Announcement.ANNOUNCED && prefill.nothingToSend()) {
            prefill.announcement = Prefill.Announcement.STOP_REPORTED;
            engine.stopped(prefill.request, sentence);
        }
    }

    /** Sums pages for decoders that compare. Returns the number of writes worked on. */
    int doWork() {
        int work = 0;
        checksums.beginCycle();
        while (checksums.mayAdvance()) {
            LayerWrite summed = checksums.advance();
            work++;
            if (summed != null) {
                left(summed);
            }
        }
        return work;
    }

    void onWriteCompleted(long cookie) {
        LayerWrite write = writer.complete((int) cookie);
        if (!checksums.add(write)) {
            left(write);
        }
    }

    /** Accounts for a write whose pages nothing reads any more. */
    private void left(LayerWrite write) {
        long nowNs = clock.nowNs();
        Delivery delivery = write.delivery;
        Prefill prefill = delivery.prefill;
        if (delivery.bytesSent == 0) {
            tally.observe(MessengerMetric.FIRST_WRITE_SECONDS, (nowNs - delivery.begunNs) / 1e9);
        }
        delivery.onLeft(write, nowNs);
        tally.add(MessengerMetric.PAGES_SENT, write.pageCount);
        tally.add(MessengerMetric.BYTES_SENT, write.bytes);
        delivery.grant.session().figures().add(MessengerMetric.PEER_BYTES_SENT, write.bytes);
        delivery.grant.session().figures().add(MessengerMetric.PEER_LAYERS_SENT, write.joinedCount);
        tally.add(MessengerMetric.STRIDED_PIECES_SENT, write.stridedPieceCount);
        tally.add(MessengerMetric.LAYERS_SENT, write.joinedCount);
        if (write.joinedCount > 0 && prefill.inFlight() && write.toToken() > prefill.settledTokens) {
            tally.add(MessengerMetric.LAYERS_SENT_EARLY, write.joinedCount);
        }
        writer.recycle(write);
        settle(delivery);
    }

    void onWriteFailed(long cookie, TransferFault fault, String detail) {
        LayerWrite write = writer.complete((int) cookie);
        Delivery delivery = write.delivery;
        delivery.writesInFlight--;
        tally.add(MessengerMetric.WRITES_FAILED, 1);
        delivery.grant.session().figures().add(MessengerMetric.PEER_WRITES_FAILED, 1);
        writer.recycle(write);
        delivery.mayStillLand = true;
        String sentence = "a write failed (" + fault + "): " + detail;
        DecoderSession session = delivery.grant.session();
        if (session.ready() && fault.isByPeer()) { // the delivery stops with the session, for the decoder's reason
            sessions.endUnlessExplained(session, sentence, clock.nowNs());
        } else {
            stop(delivery, Reason.PATH_LOST, sentence);
            sessions.end(session, sentence); // the decoder obtains its proof by closing the admission
        }
        settle(delivery);
    }

    void settle(Prefill prefill) {
        for (int i = 0; i < prefill.deliveries.size(); i++) {
            settle(prefill.deliveries.get(i));
        }
    }

    /** Advances the delivery's state, unless a write is in flight: its completion comes back here. */
    void settle(Delivery delivery) {
        if (delivery.writesInFlight > 0) {
            return;
        }
        if (delivery.open() && delivery.kvSubmitted() && !delivery.mayStillLand) {
            if (delivery.contextPending()) {
                sendContext(delivery);
            } else {
                finish(delivery);
            }
        }
        if (delivery.state() == Delivery.State.STOPPED && delivery.writesInFlight == 0) {
            delivery.become(Delivery.State.ANSWERED);
            writer.disallow(delivery);
            replies.answer(delivery);
        }
        ends.settle(delivery.prefill);
    }

    private void finish(Delivery delivery) {
        delivery.become(Delivery.State.SENT);
        checksums.flush(delivery);
        writer.disallow(delivery);
        PrefillTimeline timeline = delivery.timeline();
        engine.timeline(timeline);
        history.sent(timeline);
    }

    /**
     * After all KV has left: sends the context rows once the engine has ended the prefill. The decoder's window
     * includes them, so a prompt that was aborted after its KV was sent can never count as arrived.
     */
    private void sendContext(Delivery delivery) {
        if (!delivery.prefill.ended()) {
            return;
        }
        if (delivery.prefill.contextSlot == ContextSlots.NO_SLOT) {
            stop(
                    delivery,
                    Reason.GRANT_UNFIT,
                    "the prefiller's engine has left no context rows for transfer "
                            + delivery.grant.transferId() + ", and the decoder asks for some of ["
                            + writer.contextKinds().describe() + "]");
        } else if (delivery.grant.session().writable()) {
            int result = writer.submitContext(delivery);
            if (result == TransferEngine.BACK_PRESSURE) {
                tally.add(MessengerMetric.BACK_PRESSURED, 1);
            } else if (result != TransferEngine.ACCEPTED) {
                stop(delivery, Reason.PATH_LOST, writer.refusalOf(result, delivery.grant));
            }
        }
    }
}
