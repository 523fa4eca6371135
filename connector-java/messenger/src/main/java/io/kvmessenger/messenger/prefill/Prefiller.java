package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.messenger.kv.Isolation;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.kv.KvSession;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerState.GrantRow;
import io.kvmessenger.messenger.port.MessengerState.PrefillRow;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import java.util.List;

/**
 * The sending side: matches prompts with grants, tells {@link Deliveries} what the forward pass has completed, and
 * returns pages to the engine when nothing reads them.
 *
 * <p>A prompt may have several grants, one from each messenger of the decoder's engine. It is over when every rank of
 * that engine has been served, has declined, or has not answered in time. No "done" frame is sent: the decoder counts.
 * A failure is reported to the decoder, but only once all posted writes have completed.
 *
 * <p>Owned by the messenger's thread.
 */
public final class Prefiller {
    private final TransferEngine transfer;
    private final Sessions sessions;
    private final EngineEvents engine;
    private final LayerWriter writer;
    private final Replies replies;
    private final Deliveries deliveries;
    private final Tally tally;
    private final ProtocolLimits limits;
    private final List<KvGroup> groups;

    final Prefills prefills;
    private final Meetings meetings;
    private final StepsInFlight steps;
    private final Fences fences;
    final DecoderFrames decoderFrames;
    final PrefillEnds ends;
    final PeerAsks asks;
    private final NanoClock clock;
    private final AttachedDecoders decoders;

    public Prefiller(KvGeometry geometry, Sessions sessions, LayerWriter writer, KvPorts ports, ProtocolLimits limits) {
        this.transfer = ports.transfer();
        this.sessions = sessions;
        this.engine = ports.engine();
        this.writer = writer;
        this.steps = new StepsInFlight(ports.progress(), writer.layerCount());
        this.meetings = new Meetings(!writer.contextKinds().isEmpty(), limits);
        this.prefills = meetings.prefills;
        this.fences = new Fences(writer.contextKinds().anyAlways());
        this.tally = ports.tally();
        this.replies = new Replies(sessions, tally);
        this.clock = ports.clock();
        this.ends = new PrefillEnds(meetings, fences, ports);
        this.deliveries = new Deliveries(writer, sessions, replies, ports, limits, ends);
        this.asks = new PeerAsks(replies, ports, limits);
        this.decoderFrames = new DecoderFrames(meetings, fences, deliveries, replies, writer, ends, asks, ports);
        this.decoders = new AttachedDecoders(
                new KvSession.Side(geometry, engine, tally),
                new AttachedDecoders.Parts(decoderFrames, prefills, deliveries, writer),
                sessions,
                transfer,
                clock);
        this.limits = limits;
        this.groups = geometry.groups();
    }

    // ---- from the engine

    public void stepBegan(EngineCommand.Step step, long nowNs) {
        String misfit = steps.misfit(step);
        if (!misfit.isEmpty()) {
            refuse(step, misfit);
            return;
        }
        if (steps.full()) {
            abandon(
                    steps.oldest(),
                    "step " + steps.oldest().index + " has not ended with " + LayerProgress.STEPS_IN_FLIGHT_MAX
                            + " forward passes in flight: it is taken for one that failed");
        }
        StepInFlight begun = steps.begin(step, nowNs);
        for (Chunk chunk : step.chunks()) {
            Prefill prefill = take(chunk);
            if (prefill != null) {
                prefills.touch(prefill);
                prefill.begin(chunk, begun, writer.layerCount(), nowNs);
                advance(prefill); // pages of the prefix cache are in place and leave at once
            }
        }
    }

    /** Gives up a step at an impossible position: its increments would be taken for layers of other steps. */
    private void refuse(EngineCommand.Step step, String misfit) {
        for (StepInFlight begun : steps.renumber(step)) {
            abandon(begun, "the prefiller's engine told " + misfit);
        }
        for (Chunk chunk : step.chunks()) {
            Prefill prefill = take(chunk);
            if (prefill != null) {
                refuse(prefill, "the prefiller's engine told " + misfit);
            }
        }
    }

    public void announce(EngineCommand.Announce announce) {
        queue(announce, true);
    }

    /** The engine will compute the prompt later. It receives the events of an announced one before its end. */
    private void queue(EngineCommand.Announce announce, boolean announced) {
        Prefill prefill = startCounted(announce.request(), announce.transfer());
        if (prefill != null) {
            prefill.announcement = announced ? Prefill.Announcement.ANNOUNCED : Prefill.Announcement.NONE;
            decoderFrames.match(prefill);
            meetings.compareLater(announce.transferId(), clock.nowNs());
        } else if (announced) {
            engine.stopped(
                    announce.request(), "another request with transfer id " + announce.transferId() + " is being sent");
        }
    }

    public void computed(Chunk chunk, long nowNs) {
        Prefill prefill = take(chunk);
        if (prefill != null) {
            prefill.onComputed(chunk, writer.layerCount(), nowNs);
            prefills.touch(prefill);
            deliveries.advance(prefill);
            ends.settle(prefill);
        }
    }

    /** A forward pass is queued to its end. Its chunks are in place when the layer counter says so. */
    public void stepEnded(EngineCommand.StepEnded ended, long nowNs) {
        StepInFlight step = steps.find(ended.stepIndex());
        if (step == null) {
            return; // abandoned
        }
        String misfit = steps.misfitEnd(step, ended.counterEnd());
        if (!misfit.isEmpty()) {
            engine.log(EngineLog.Level.ERROR, misfit);
            abandon(step, misfit);
            return;
        }
        steps.end(step, ended.counterEnd());
        noteSteps(nowNs);
    }

    public void stepFailed(long stepIndex) {
        StepInFlight step = steps.find(stepIndex);
        if (step != null) {
            abandon(step, "the prefiller's forward pass failed");
        }
    }

    /** Notes what has become readable, and ends the steps whose end the layer counter has reached. */
    private void noteSteps(long nowNs) {
        steps.note(nowNs);
        for (StepInFlight over = steps.takeOver(); over != null; over = steps.takeOver()) {
            for (Prefill prefill : over.prefills) {
                prefill.stepOver(over, nowNs);
                prefills.touch(prefill);
                advance(prefill);
                ends.settle(prefill);
            }
        }
    }

    /** Drops a step whose chunks will not be computed. */
    private void abandon(StepInFlight step, String sentence) {
        steps.forget(step);
        for (Prefill prefill : step.prefills) {
            steps.remove(prefill);
            stop(prefill, Reason.PREFILL_ABORTED, sentence);
        }
    }

    public void prefillEnded(EngineCommand.PrefillEnded ended, long nowNs) {
        Prefill prefill = prefills.of(ended.request());
        if (prefill == null) {
            engine.released(ended.request()); // never known, or over: an engine that has not heard of it asks again
            return;
        }
        if (prefill.state() == Prefill.State.CONCLUDED) {
            decoderFrames.reportPrefilled(prefill);
            ends.releaseConcluded(prefill);
            return;
        }
        if (prefill.ended() && ended.outcome() == EngineCommand.PrefillOutcome.FINISHED) {
            return; // once more: it is released when it is over. An abort after the end stops what has not left
        }
        if (!prefill.ended()) {
            prefill.become(Prefill.State.ENDED);
        }
        decoderFrames.reportPrefilled(prefill);
        meetings.expireAt(prefill, nowNs + meetings.waitNs(prefill));
        prefills.touch(prefill); // its context rows may be sent now
        prefill.contextSlot = ended.contextSlot();
        String unfit = writer.unfitEnd(ended, prefill.begunToItsEnd(), prefill.isOffer());
        if (!unfit.isEmpty()) {
            stop(prefill, Reason.PREFILL_ABORTED, unfit);
        }
        deliveries.settle(prefill);
        ends.settle(prefill);
    }

    public void preempt(EngineCommand.Preempt preempt) {
        for (String request : preempt.requests()) {
            Prefill prefill = prefills.of(request);
            if (prefill != null && prefill.ended()) { // not computed again: a second grant would wait in vain
                steps.remove(prefill);
                stop(prefill, Reason.PREFILL_ABORTED, "the prefiller's engine has ended the request");
                fences.add(prefill, preempt.fenced(), clock.nowNs());
            } else if (prefill != null) {
                steps.remove(prefill);
                boolean again = !prefill.stopped();
                boolean announced = prefill.announced();
                decoderFrames.dismissServed(prefill);
                meetings.remove(prefill);
                if (again) {
                    prefill.announcement =
                            Prefill.Announcement.NONE; // it has not stopped, but waits in the queue again
                }
                stop(prefill, Reason.PREEMPTED, "the prefiller's engine preempted the request");
                fences.add(prefill, preempt.fenced(), clock.nowNs());
                if (again) {
                    TransferKey transfer = prefill.transfer();
                    queue(new EngineCommand.Announce(request, transfer.id(), transfer.digest()), announced);
                }
            }
        }
        fences.waitAgain(preempt.requests(), preempt.fenced());
        fences.completeIfQuiet(preempt.fenced());
    }

    /** Stops everything that still needs a grant or the engine; what is computed and granted may leave. */
    public void shutDown(String sentence) {
        decoderFrames.shutDown(sentence);
        for (Prefill prefill : List.copyOf(prefills.all())) {
            if (prefill.awaitsGrants()) {
                close(prefill, Reason.SHUTTING_DOWN, sentence);
            }
            deliveries.stopWhatNeedsTheEngine(prefill, Reason.SHUTTING_DOWN, sentence);
            ends.settle(prefill);
        }
    }

    // ---- from decoders

    public Session accept(long link, String peerAddress) {
        return decoders.accept(link, peerAddress);
    }

    public void onPeerReady(Peer peer) {
        decoders.onPeerReady(peer);
    }

    public void onPeerLost(Peer peer, TransferFault fault, String detail) {
        decoders.onPeerLost(peer, fault, detail);
    }

    public void onEnqueueFailed(TransferKey transfer, String reason) {
        decoderFrames.onEnqueueFailed(transfer, reason);
    }

    // ---- from the transfer engine

    public void onWriteCompleted(long cookie) {
        deliveries.onWriteCompleted(cookie);
    }

    public void onWriteFailed(long cookie, TransferFault fault, String detail) {
        deliveries.onWriteFailed(cookie, fault, detail);
    }

    /** The transfer engine has ended: no write is in flight, and no completion will follow. */
    public void onTransferEnded(String reason) {
        for (int cookie : writer.cookiesInFlight()) {
            deliveries.onWriteFailed(cookie, TransferFault.DISCONNECTED, reason);
        }
    }

    // ---- time

    /** Submits what the forward passes have completed, and ends waits that have exceeded their limit. */
    public int tick(long nowNs) {
        int work = 0;
        noteSteps(nowNs);
        work += deliveries.doWork();
        for (Prefill prefill : prefills.active()) {
            work += advance(prefill);
            if (deliveries.atRest(prefill)) {
                prefills.rest(prefill);
            }
        }
        work += asks.tick(nowNs);
        work += endDue(Due.KINDS - 1, nowNs);
        work += fences.endLate(sessions, limits, nowNs); // a session that ends takes its grants with it
        return work + endDue(Due.KINDS, nowNs);
    }

    /** Ends what is due of the first kinds. Returns the number of what was ended. */
    private int endDue(int kinds, long nowNs) {
        int work = 0;
        for (Due due = meetings.takeDue(kinds, nowNs); due != null; due = meetings.takeDue(kinds, nowNs)) {
            work += switch (due) {
                case Prefill prefill -> expire(prefill);
                case Announcement announcement -> decoderFrames.reportOverdue(announcement);
                case Meeting meeting -> endContradiction(meeting, nowNs);
                case PageGrant grant -> decoderFrames.expire(grant, nowNs, steps.namedPromptsNs(nowNs));
            };
        }
        return work;
    }

    public long nextDeadlineNs(long nowNs) {
        long latestNs = asks.nextDeadlineNs(nowNs + limits.heartbeatNs());
        return fences.earliestNs(meetings.earliestNs(latestNs), limits.fenceLimitNs());
    }

    /** Advances a prefill; a bug met on the way stops this prefill only. */
    private int advance(Prefill prefill) {
        return Isolation.run(() -> deliveries.advance(prefill), bug -> {
            tally.add(MessengerMetric.FAULTS_CONTAINED, 1);
            refuse(
                    prefill,
                    "a bug in the messenger, met by transfer "
                            + prefill.transfer().id() + ": " + bug);
            return 1;
        });
    }

    /** Whether a decoder waits for layers of a forward pass in flight, so that the counter should be polled closely. */
    public boolean watching() {
        return steps.awaited();
    }

    public int prefillCount() {
        return prefills.count() + fences.count();
    }

    /** Number of prompts visited by loops over several. */
    public long visits() {
        return prefills.visits();
    }

    /** Number of prefills whose end a decoder waits for. */
    public int owedCount() {
        return fences.count()
                + (int) prefills.all().stream().filter(Prefill::owed).count();
    }

    public int grantsWaitingCount() {
        return meetings.waiting().size();
    }

    /** The oldest prefills, and what each waits for. */
    public List<PrefillRow> rows(int rowsMax) {
        return PrefillRows.of(prefills.all(), rowsMax);
    }

    /** The grants that have waited longest. */
    public List<GrantRow> grantRows(int rowsMax, long nowNs) {
        return PrefillRows.of(meetings.waiting(), rowsMax, nowNs);
    }

    // ---- inside

    /** The prefill that a chunk belongs to, after adding the chunk's pages; null when it is not to be sent. */
    private Prefill take(Chunk chunk) {
        Prefill prefill = prefills.of(chunk.request());
        boolean first = prefill == null;
        if (first) {
            prefill = startCounted(chunk.request(), chunk.transfer());
        }
        if (prefill == null || prefill.stopped()) {
            return null;
        }
        String misfit = prefill.misfit(chunk);
        if (!misfit.isEmpty()) {
            refuse(prefill, "the prefiller's engine told a chunk of request " + chunk.request() + " that " + misfit);
            return null;
        }
        prefill.take(chunk);
        if (first) {
            decoderFrames.match(prefill);
        } else {
            stopDifferent(prefill);
        }
        return prefill;
    }

    /** The engine's data about a prompt is inconsistent: its decoders are told, and nothing more of it is sent. */
    private void refuse(Prefill prefill, String sentence) {
        engine.log(EngineLog.Level.ERROR, sentence);
        stop(prefill, Reason.PREFILL_ABORTED, sentence);
    }

    /** Stops an announced prefill whose prompt turns out to differ from the decoder's. */
    private void stopDifferent(Prefill prefill) {
        for (Delivery delivery : prefill.deliveries) {
            String difference = prefill.difference(delivery.grant);
            if (!delivery.stopped() && !difference.isEmpty()) {
                deliveries.stop(delivery, Reason.GRANT_UNFIT, difference);
                deliveries.settle(delivery);
            }
        }
    }

    private Prefill startCounted(String request, TransferKey transfer) {
        Prefill prefill = start(request, transfer);
        if (prefill != null) {
            tally.add(MessengerMetric.PREFILLS_STARTED, 1);
        }
        return prefill;
    }

    /** A new prefill; null if its transfer is sent already. */
    Prefill start(String request, TransferKey transfer) {
        Prefill rival = meetings.rivalOf(request, transfer);
        if (rival != null) {
            engine.log(
                    EngineLog.Level.WARNING,
                    "request " + request + " names transfer " + transfer.id() + ", which request " + rival.request
                            + " is sending; it is not sent twice");
            return null;
        }
        Prefill prefill = new Prefill(request, transfer, groups, clock.nowNs());
        meetings.add(prefill, clock.nowNs());
        return prefill;
    }

    /** Ends sending this prompt to any decoder. */
    private void stop(Prefill prefill, Reason reason, String sentence) {
        close(prefill, reason, sentence);
        for (Delivery delivery : prefill.deliveries) {
            deliveries.stop(delivery, reason, sentence);
            deliveries.settle(delivery);
        }
        ends.settle(prefill);
    }

    /** Begins no further delivery; deliveries in progress continue. */
    private void close(Prefill prefill, Reason reason, String sentence) {
        if (!prefill.stopped()) {
            prefill.stop(new Stop(reason, sentence));
            deliveries.reportIfNothingToSend(prefill, sentence);
        }
    }

    /** Ends a prefill's wait for grants, unless one is expected. Returns the number of prefills ended. */
    private int expire(Prefill prefill) {
        if (!prefill.ended() || !prefill.awaitsGrants() || (!prefill.isOffer() && meetings.isExpected(prefill))) {
            return 0;
        }
        String within = " came within " + meetings.waitNs(prefill) / 1_000_000 + " ms ";
        String sentence = "no grant for transfer " + prefill.transfer().id() + within;
        if (prefill.isOffer()) {
            sentence += "of the offer of a cached prefix";
            engine.log(EngineLog.Level.INFO, sentence);
        } else if (prefill.rejected) {
            sentence += "after its decoder rejected the request, or the request's client went away";
            engine.log(EngineLog.Level.INFO, sentence);
        } else {
            tally.add(MessengerMetric.PREFILLS_EXPIRED, 1);
            sentence += "of the end of its prefill (grant_wait_seconds), which has heard of " + prefill.answeredBy();
            engine.log(EngineLog.Level.WARNING, sentence);
        }
        close(prefill, Reason.EXPIRED, sentence);
        ends.settle(prefill);
        return 1;
    }

    /** Ends legs of requests that name different prompts: their counterparts did not come. Returns 0 if none do. */
    private int endContradiction(Meeting meeting, long nowNs) {
        Meeting.Contradiction legs = meetings.compare(meeting, nowNs);
        decoderFrames.decline(legs);
        legs.prefills().forEach(prefill -> stop(prefill, Reason.EXPIRED, legs.sentence()));
        meetings.compareLater(meeting.id, nowNs);
        return legs.isNone() ? 0 : 1;
    }
}
