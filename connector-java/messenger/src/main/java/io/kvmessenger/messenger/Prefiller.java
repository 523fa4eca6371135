package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.EngineCommand.Chunk;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;

/**
 * The sending side: matches prompts with grants, releases layers as the forward pass completes them, and gives pages
 * back to the engine when nothing reads them.
 *
 * <p>It sends no "done": the decoder counts. It does say when it cannot deliver, and only once all its posted writes
 * have completed.
 *
 * <p>Owned by the messenger's thread; which bytes a layer's pages are is {@link LayerWriter}'s business.
 */
final class Prefiller {
    private final KvGeometry geometry;
    private final TransferEngine transfer;
    private final Sessions sessions;
    private final EngineEvents engine;
    private final LayerProgress progress;
    private final LayerWriter writer;
    private final Replies replies;
    private final WaitingGrants waiting;
    private final Tally tally;
    private final NanoClock clock;
    private final ProtocolLimits limits;

    private final Map<String, Prefill> byRequest = new LinkedHashMap<>();
    private final Map<String, Prefill> byTransfer = new HashMap<>();
    private final Map<Peer, Session> byPeer = new HashMap<>();
    /** Prompts that the running forward pass computes a chunk of. */
    private final List<Prefill> running = new ArrayList<>();
    /** A forward pass has begun and not ended. */
    private boolean stepOpen;

    private final Fences fences = new Fences();

    Prefiller(
            KvGeometry geometry, Sessions sessions, LayerWriter writer, Messenger.Ports ports, ProtocolLimits limits) {
        this.geometry = geometry;
        this.transfer = ports.transfer();
        this.sessions = sessions;
        this.engine = ports.engine();
        this.progress = ports.progress();
        this.writer = writer;
        this.tally = ports.tally();
        this.clock = ports.clock();
        this.replies = new Replies(sessions, tally);
        this.waiting = new WaitingGrants(replies, ports.intake(), limits);
        this.limits = limits;
    }

    // ---- from the engine

    void stepBegan(EngineCommand.Step step, long nowNs) {
        if (stepOpen) {
            abandonStep();
        }
        stepOpen = true;
        progress.stepBegan(step.stepIndex(), step.counterStart());
        for (Chunk chunk : step.chunks()) {
            Prefill prefill = take(chunk);
            if (prefill != null) {
                prefill.runningEndToken = chunk.endToken();
                prefill.chunks.add(new ChunkTimeline(chunk.firstToken(), chunk.endToken(), writer.layerCount(), nowNs));
                running.add(prefill);
                advance(prefill); // pages of the prefix cache are in place and go out at once
            }
        }
    }

    void announce(EngineCommand.Announce announce) {
        Prefill prefill = start(announce.request(), announce.transferId());
        if (prefill != null) {
            prefill.announced = true;
            match(prefill);
        }
    }

    void computed(Chunk chunk, long nowNs) {
        Prefill prefill = take(chunk);
        if (prefill != null) {
            prefill.onComputed(chunk, writer.layerCount(), nowNs);
            advance(prefill);
        }
    }

    void stepEnded(long stepIndex, long nowNs) {
        progress.stepEnded(stepIndex);
        stepOpen = false;
        for (Prefill prefill : running) {
            prefill.chunks.getLast().onComputed(nowNs);
            prefill.settledTokens = prefill.runningEndToken;
            prefill.runningEndToken = 0;
            advance(prefill);
        }
        running.clear();
    }

    /** The last forward pass never ended: what it was to compute is not there. */
    private void abandonStep() {
        progress.stepAbandoned();
        for (Prefill prefill : running) {
            prefill.runningEndToken = 0;
            stop(prefill, Reason.PREFILL_ABORTED, "the prefiller's forward pass failed");
            settle(prefill);
        }
        running.clear();
    }

    void prefillEnded(EngineCommand.PrefillEnded ended, long nowNs) {
        Prefill prefill = byRequest.get(ended.request());
        if (prefill == null) {
            engine.released(ended.request()); // preempted and never resumed, or ended before its first chunk
            return;
        }
        prefill.engineEnded = true;
        prefill.grantDeadlineNs = nowNs + limits.grantWaitNs();
        prefill.contextSlot = ended.contextSlot();
        String unfit = writer.unfitEnd(ended, prefill.computed());
        if (!unfit.isEmpty()) {
            stop(prefill, Reason.PREFILL_ABORTED, unfit);
        }
        settle(prefill);
    }

    void preempt(EngineCommand.Preempt preempt) {
        for (String request : preempt.requests()) {
            Prefill prefill = byRequest.get(request);
            if (prefill != null) {
                running.remove(prefill);
                waiting.preempted(prefill.grant);
                stop(prefill, Reason.PREEMPTED, "the prefiller's engine preempted the request");
                detach(prefill);
                fences.add(prefill, preempt.fenced());
            }
        }
        fences.waitAgain(preempt.requests(), preempt.fenced());
        fences.completeIfQuiet(preempt.fenced());
    }

    /** Stops all that needs a grant or more of the engine; what is computed and granted may leave. */
    void shutDown(String sentence) {
        waiting.shutDown(sentence);
        stopAll(p -> !p.leavesWithoutEngine(writer.contextPending(p)), Reason.SHUTTING_DOWN, sentence);
    }

    // ---- from decoders

    void onAttached(Session session, Attach attach) {
        try {
            session.peerRegions = AttachWire.regionsByRank(attach, session.peerGeometry);
            session.peerContext = PeerContextRow.decode(attach);
        } catch (IllegalArgumentException e) {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            sessions.end(session, session.peerName() + " attached with " + e.getMessage());
            return;
        }
        session.routes = writer.routesTo(session.peerGeometry, session.peerRegions);
        session.peer = transfer.connect(
                AttachWire.address(attach), attach.getAdmissionKey().toByteArray(), session.peerName());
        byPeer.put(session.peer, session);
    }

    void onFrame(Session session, ControlFrame frame, long nowNs) {
        switch (frame.getBodyCase()) {
            case GRANT -> onGrant(session, frame.getGrant(), nowNs);
            case CANCEL -> onCancel(session, frame.getCancel());
            case DECLINE -> onDecline(frame.getDecline().getTransferId());
            default -> {
                tally.add(MessengerMetric.FRAMES_INVALID, 1);
                sessions.end(session, session.peerName() + " sent " + frame.getBodyCase() + " to a prefiller");
            }
        }
    }

    void onPeerReady(Peer peer) {
        Session session = byPeer.get(peer);
        if (session != null) {
            session.peerReady = true;
            byTransfer.values().stream()
                    .filter(p -> p.grantedBy(session))
                    .toList()
                    .forEach(this::advance);
        }
    }

    void onPeerLost(Peer peer, TransferFault fault, String detail) {
        Session session = byPeer.remove(peer);
        if (session == null) {
            return;
        }
        session.peer = null;
        session.peerReady = false;
        String sentence = "the data paths to " + session.peerName() + " ended (" + fault + "): " + detail;
        stopAll(p -> p.grantedBy(session), Reason.PATH_LOST, sentence);
        sessions.end(session, sentence);
    }

    void onEnded(Session session, String reason) {
        stopAll(p -> p.grantedBy(session), Reason.PATH_LOST, reason);
        waiting.drop(session);
        if (session.peer != null) {
            byPeer.remove(session.peer);
            transfer.disconnect(session.peer);
            session.peer = null;
            session.peerReady = false;
        }
    }

    void onEnqueueFailed(String transferId, String reason) {
        waiting.take(transferId).ifPresent(grant -> replies.decline(grant, Reason.NEVER_CAME, reason));
    }

    // ---- from the transfer engine

    void onWriteCompleted(long cookie) {
        long nowNs = clock.nowNs();
        LayerWrite write = writer.complete((int) cookie);
        Prefill prefill = write.prefill;
        prefill.onLeft(write, geometry.pageTokens(), nowNs);
        tally.add(MessengerMetric.PAGES_SENT, write.pageCount);
        tally.add(MessengerMetric.BYTES_SENT, write.bytes);
        tally.add(MessengerMetric.STRIDED_PIECES_SENT, write.stridedPieceCount);
        tally.add(MessengerMetric.LAYERS_SENT, write.joinedCount);
        if (prefill.runningEndToken > 0 && write.toPage * geometry.pageTokens() > prefill.settledTokens) {
            tally.add(MessengerMetric.LAYERS_SENT_EARLY, write.joinedCount);
        }
        writer.recycle(write);
        settle(prefill);
    }

    void onWriteFailed(long cookie, TransferFault fault, String detail) {
        LayerWrite write = writer.complete((int) cookie);
        Prefill prefill = write.prefill;
        prefill.writesInFlight--;
        tally.add(MessengerMetric.WRITES_FAILED, 1);
        writer.recycle(write);
        prefill.mayStillLand = true;
        String sentence = "a write failed (" + fault + "): " + detail;
        stop(prefill, Reason.PATH_LOST, sentence);
        sessions.end(prefill.grant.session(), sentence); // the decoder looks for proof itself
        settle(prefill);
    }

    // ---- time

    /** Submits what the running forward pass has completed, and ends waits that have lasted too long. */
    int tick(long nowNs) {
        int work = 0;
        if (!running.isEmpty()) {
            int readable = progress.readableLayerCount();
            for (Prefill prefill : running) {
                prefill.chunks.getLast().onReadableBefore(readable, nowNs);
            }
        }
        for (Prefill prefill : List.copyOf(byTransfer.values())) {
            work += advance(prefill);
            if (prefill.engineEnded
                    && prefill.grant == null
                    && !prefill.stopped
                    && nowNs - prefill.grantDeadlineNs >= 0) {
                expire(prefill);
                work++;
            }
        }
        return work + waiting.expire(nowNs);
    }

    long nextDeadlineNs(long nowNs) {
        long earliest = nowNs + limits.heartbeatNs();
        for (Prefill prefill : byRequest.values()) {
            if (prefill.engineEnded && prefill.grant == null && prefill.grantDeadlineNs - earliest < 0) {
                earliest = prefill.grantDeadlineNs;
            }
        }
        return waiting.earliestNs(earliest);
    }

    /** A forward pass runs whose layers somebody waits for: the counter is worth watching closely. */
    boolean watching() {
        for (Prefill prefill : running) {
            if (prefill.grant != null && !prefill.stopped) {
                return true;
            }
        }
        return false;
    }

    int prefillCount() {
        return byRequest.size() + fences.count();
    }

    /** Decoders wait for the end of so many. */
    int owedCount() {
        return fences.count()
                + (int) byTransfer.values().stream().filter(Prefill::owed).count();
    }

    int grantsWaitingCount() {
        return waiting.count();
    }

    // ---- inside

    /** The prefill that a chunk belongs to, with the chunk's pages; null when it is not sent. */
    private Prefill take(Chunk chunk) {
        Prefill prefill = byRequest.get(chunk.request());
        boolean first = prefill == null;
        if (first) {
            prefill = start(chunk.request(), chunk.transferId());
        }
        if (prefill == null) {
            return null;
        }
        if (prefill.promptTokens == 0) {
            prefill.promptTokens = chunk.promptTokens();
            prefill.settledTokens = chunk.cachedTokens();
        }
        prefill.addPages(chunk.newPages());
        if (first) {
            match(prefill);
        } else if (prefill.grant != null && prefill.differsFrom(prefill.grant)) {
            stop(prefill, Reason.GRANT_UNFIT, prefill.difference(prefill.grant));
            settle(prefill);
        }
        return prefill;
    }

    private Prefill start(String request, String transferId) {
        if (byTransfer.containsKey(transferId)) {
            engine.log(
                    EngineEvents.Level.WARNING,
                    "request " + request + " names transfer " + transferId + ", which request "
                            + byTransfer.get(transferId).request + " is sending; it is not sent twice");
            return null;
        }
        tally.add(MessengerMetric.PREFILLS_STARTED, 1);
        Prefill prefill = new Prefill(request, transferId);
        byRequest.put(request, prefill);
        byTransfer.put(transferId, prefill);
        return prefill;
    }

    /** Joins a prefill that has just begun with what its decoder said before. */
    private void match(Prefill prefill) {
        Optional<PageGrant> grant = waiting.take(prefill.transferId);
        if (grant.isPresent()) {
            join(prefill, grant.get());
        } else if (waiting.takeCancelled(prefill.transferId)) {
            stop(prefill, Reason.REASON_UNSPECIFIED, "the decoder cancelled the transfer before its prefill began");
        }
    }

    private void onGrant(Session session, Grant wire, long nowNs) {
        tally.add(MessengerMetric.GRANTS_RECEIVED, 1);
        PageGrant grant = new PageGrant(
                session,
                wire.getTransferId(),
                wire.getImm(),
                wire.getPromptTokens(),
                wire.getFirstToken(),
                wire.getPageIndicesList().stream().mapToInt(Integer::intValue).toArray(),
                wire.getContextSlot() - 1,
                nowNs,
                nowNs + limits.grantWaitNs());
        String unfit = writer.unfit(grant);
        Prefill prefill = byTransfer.get(grant.transferId());
        if (!unfit.isEmpty()) {
            replies.decline(grant, Reason.GRANT_UNFIT, unfit);
        } else if (!waiting.shutDownReason().isEmpty()) {
            replies.decline(grant, Reason.SHUTTING_DOWN, waiting.shutDownReason());
        } else if (prefill != null) {
            joinLate(prefill, grant);
        } else if (wire.getPromptTokenIdsCount() == 0
                && waiting.endOf(grant.transferId()).isPresent()) {
            replies.decline(
                    grant, Reason.EXPIRED, waiting.endOf(grant.transferId()).get());
        } else {
            waiting.await(
                    grant,
                    wire.getPromptTokenIdsList().stream().mapToInt(t -> t).toArray());
        }
    }

    private void joinLate(Prefill prefill, PageGrant grant) {
        if (prefill.grant != null) {
            replies.decline(
                    grant,
                    Reason.GRANT_UNFIT,
                    "transfer " + grant.transferId() + " is granted already by "
                            + prefill.grant.session().peerName());
        } else if (prefill.stopped) {
            replies.decline(grant, Reason.PREFILL_ABORTED, prefill.stopReason);
        } else {
            join(prefill, grant);
        }
    }

    private void join(Prefill prefill, PageGrant grant) {
        if (prefill.differsFrom(grant)) {
            replies.decline(grant, Reason.GRANT_UNFIT, prefill.difference(grant));
            return;
        }
        prefill.grant = grant;
        writer.allow(grant);
        prefill.nextPage = new int[grant.session().routes.size()];
        java.util.Arrays.fill(prefill.nextPage, grant.firstToken() / geometry.pageTokens());
        if (prefill.announced) {
            engine.granted(prefill.request, grant.promptTokens(), grant.firstToken());
        }
        advance(prefill);
    }

    /** Submits every complete page not yet submitted. Returns how many writes were taken. */
    private int advance(Prefill prefill) {
        PageGrant grant = prefill.grant;
        if (grant == null || prefill.stopped || prefill.sent || !grant.session().peerReady) {
            return 0;
        }
        int readable = progress.readableLayerCount();
        int submitted = 0;
        for (int piece = 0; piece < prefill.nextPage.length; piece++) {
            int layer = grant.session().routes.get(piece).layerOrdinal();
            int toPage = prefill.completePages(layer, readable, geometry.pageTokens());
            if (prefill.nextPage[piece] < toPage) {
                int joinedCount = writer.joinableCount(prefill, piece, toPage, readable);
                int result = writer.submit(prefill, piece, joinedCount, toPage);
                if (result == TransferEngine.BACK_PRESSURE) {
                    tally.add(MessengerMetric.BACK_PRESSURED, 1);
                    return submitted;
                }
                if (result != TransferEngine.ACCEPTED) {
                    stop(prefill, Reason.PATH_LOST, writer.refusalOf(result, grant));
                    settle(prefill);
                    return submitted;
                }
                submitted++;
                prefill.onSubmitted(piece, joinedCount, clock.nowNs());
            }
        }
        if (submitted == 0) {
            settle(prefill);
        }
        return submitted;
    }

    private void onCancel(Session session, Cancel cancel) {
        if (waiting.cancel(session, cancel.getTransferId(), cancel.getImm())) {
            replies.confirm(session, cancel.getTransferId(), cancel.getImm());
            return;
        }
        if (waiting.takePreempted(session, cancel.getTransferId(), cancel.getImm())) {
            onDecline(cancel.getTransferId()); // the cancel crossed the preemption: nobody will grant the next life
        }
        if (fences.anyHolds(session, cancel.getImm())) {
            return; // preempted with writes in flight: their end is told when the last has completed
        }
        Prefill prefill = byTransfer.get(cancel.getTransferId());
        if (prefill != null && !prefill.sent && prefill.holdsGrant(session, cancel.getImm())) {
            stop(prefill, Reason.REASON_UNSPECIFIED, "the decoder cancelled the transfer");
            settle(prefill);
            return;
        }
        replies.confirm(session, cancel.getTransferId(), cancel.getImm());
    }

    private void onDecline(String transferId) {
        Prefill prefill = byTransfer.get(transferId);
        if (prefill == null) {
            waiting.decline(transferId);
        } else if (prefill.grant == null) {
            stop(prefill, Reason.REASON_UNSPECIFIED, "the decoder declined the transfer");
            settle(prefill);
        }
    }

    private void stopAll(Predicate<Prefill> which, Reason reason, String sentence) {
        for (Prefill prefill : List.copyOf(byTransfer.values())) {
            if (!prefill.sent && which.test(prefill)) {
                stop(prefill, reason, sentence);
                settle(prefill);
            }
        }
    }

    private void stop(Prefill prefill, Reason reason, String sentence) {
        if (!prefill.stopped && !prefill.sent) {
            prefill.stopped = true;
            prefill.stopReason = sentence;
            prefill.stopCode = reason;
            if (prefill.announced) {
                engine.stopped(prefill.request, sentence);
            }
        }
    }

    private void expire(Prefill prefill) {
        tally.add(MessengerMetric.PREFILLS_EXPIRED, 1);
        String sentence = "no grant for transfer " + prefill.transferId + " came within "
                + limits.grantWaitNs() / 1_000_000 + " ms of the end of its prefill (grant_wait_seconds)";
        engine.log(EngineEvents.Level.WARNING, sentence);
        stop(prefill, Reason.EXPIRED, sentence);
        settle(prefill);
    }

    /** Draws the consequences of where a prefill stands: sent, answered, released, forgotten. */
    private void settle(Prefill prefill) {
        if (prefill.writesInFlight > 0) {
            return;
        }
        if (!prefill.stopped
                && !prefill.sent
                && prefill.grant != null
                && prefill.computed()
                && prefill.everythingSubmitted(writer.pageCount(prefill.promptTokens))
                && contextLeft(prefill)) {
            prefill.sent = true;
            writer.disallow(prefill.grant);
            onSent(prefill);
        }
        if (prefill.writesInFlight > 0) {
            return;
        }
        if (prefill.stopped && !prefill.answered) {
            prefill.answered = true;
            answer(prefill);
        }
        fences.onQuiet(prefill);
        if (prefill.engineEnded && (prefill.sent || prefill.stopped) && byRequest.get(prefill.request) == prefill) {
            detach(prefill);
            waiting.remember(
                    prefill.transferId,
                    prefill.sent ? "transfer " + prefill.transferId + " was sent already" : prefill.stopReason);
            engine.released(prefill.request);
        }
    }

    /**
     * All KV has left: sends the context rows, once the engine has ended the prefill. They make the transfer complete,
     * so whatever was sent of an aborted prompt can never arrive.
     */
    private boolean contextLeft(Prefill prefill) {
        if (!writer.contextPending(prefill)) {
            return true;
        }
        if (prefill.engineEnded && prefill.grant.session().peerReady) {
            int result = writer.submitContext(prefill);
            if (result == TransferEngine.BACK_PRESSURE) {
                tally.add(MessengerMetric.BACK_PRESSURED, 1);
            } else if (result != TransferEngine.ACCEPTED) {
                stop(prefill, Reason.PATH_LOST, writer.refusalOf(result, prefill.grant));
            }
        }
        return false;
    }

    private void onSent(Prefill prefill) {
        tally.add(MessengerMetric.PREFILLS_SENT, 1);
        long forwardEndNs = prefill.chunks.getLast().forwardEndNs();
        tally.observe(MessengerMetric.PREFILL_TAIL_SECONDS, Math.max(0, prefill.lastLeftNs - forwardEndNs) / 1e9);
        engine.timeline(prefill.timeline());
    }

    private void answer(Prefill prefill) {
        tally.add(MessengerMetric.PREFILLS_UNDELIVERED, 1);
        if (prefill.grant != null) {
            writer.disallow(prefill.grant);
            replies.answer(prefill);
        }
    }

    /** A preempted prompt with nothing in flight is answered at once; its next life is another object. */
    private void detach(Prefill prefill) {
        byRequest.remove(prefill.request, prefill);
        byTransfer.remove(prefill.transferId, prefill);
        if (prefill.stopped && prefill.writesInFlight == 0 && !prefill.answered) {
            prefill.answered = true;
            answer(prefill);
        }
    }
}
