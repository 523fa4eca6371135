package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.Ask;
import io.kvmessenger.messenger.wire.OfferWire;
import io.kvmessenger.messenger.wire.PromptWire;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Peers' questions for what this engine's prefix cache holds: each is brought to the engine, and answered once.
 *
 * <p>Owned by the messenger's thread. It knows nothing of pages: what is offered is a {@link Prefill} ({@link Offers}).
 */
final class PeerAsks {
    private record Open(DecoderSession session, long dueNs) {}

    /** A wrong address or key refuses each question. */
    private static final long WARNING_PERIOD_NS = 60_000_000_000L;

    private final Replies replies;
    private final EngineIntake intake;
    private final EngineEvents engine;
    private final Tally tally;
    private final NanoClock clock;
    private final ProtocolLimits limits;
    private final Map<TransferKey, Open> byTransfer = new LinkedHashMap<>();
    private boolean closed;
    /** When the log may have the next warning of a question that the engine's server refuses. */
    private long warningDueNs;

    PeerAsks(Replies replies, KvPorts ports, ProtocolLimits limits) {
        this.replies = replies;
        this.intake = ports.intake();
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.clock = ports.clock();
        this.limits = limits;
        this.warningDueNs = clock.nowNs();
    }

    /** A transfer is asked for by one session at a time: the asking engine names each question anew. */
    void onAsk(DecoderSession session, Ask ask) {
        TransferKey transfer = OfferWire.transfer(ask);
        if (!intake.takesQuestions()) {
            answer(session, transfer, 0, OfferOutcome.UNAVAILABLE);
        } else if (closed || byTransfer.size() >= ProtocolLimits.ASKS_OPEN_MAX || byTransfer.containsKey(transfer)) {
            answer(session, transfer, 0, OfferOutcome.BUSY);
        } else {
            byTransfer.put(transfer, new Open(session, clock.nowNs() + limits.offerLimitNs()));
            intake.ask(transfer, PromptWire.decode(ask.getPrompt()));
        }
    }

    /** The session that has asked, if it still waits. */
    Optional<DecoderSession> asker(TransferKey transfer) {
        return Optional.ofNullable(byTransfer.get(transfer)).map(Open::session);
    }

    /** The question, if it is open, is answered. */
    void end(TransferKey transfer) {
        remove(transfer);
    }

    private Open remove(TransferKey transfer) {
        Open open = byTransfer.remove(transfer);
        if (open != null) {
            intake.endAsk(transfer);
        }
        return open;
    }

    void answer(DecoderSession session, TransferKey transfer, int heldTokens, OfferOutcome outcome) {
        tally.add(MessengerMetric.OFFERS_MADE, outcome);
        replies.offer(session, transfer, heldTokens, outcome);
    }

    /** Answers a question, if it is open, that this engine will not. */
    void answerBusy(TransferKey transfer) {
        Open open = remove(transfer);
        if (open != null) {
            answer(open.session, transfer, 0, OfferOutcome.BUSY);
        }
    }

    /** The engine's server has refused a prompt, which may be that of a question. */
    void onRefused(TransferKey transfer, String reason) {
        if (!byTransfer.containsKey(transfer)) {
            return;
        }
        long nowNs = clock.nowNs();
        if (nowNs - warningDueNs >= 0) {
            warningDueNs = nowNs + WARNING_PERIOD_NS;
            engine.log(
                    EngineLog.Level.WARNING,
                    "other engines that ask for what is cached here are answered that this one is busy: " + reason);
        }
        answerBusy(transfer);
    }

    /** The session does not want the answer any more; false if it waits for none. */
    boolean drop(DecoderSession session, TransferKey transfer) {
        Open open = byTransfer.get(transfer);
        return open != null && open.session == session && remove(transfer) != null;
    }

    boolean anyOf(DecoderSession session) {
        return byTransfer.values().stream().anyMatch(open -> open.session == session);
    }

    void onEnded(DecoderSession session) {
        byTransfer.entrySet().stream()
                .filter(entry -> entry.getValue().session == session)
                .map(Map.Entry::getKey)
                .toList()
                .forEach(this::remove);
    }

    /** Answers all questions, and those that come later. */
    void shutDown() {
        closed = true;
        List.copyOf(byTransfer.keySet()).forEach(this::answerBusy);
    }

    /** Answers the questions that have waited for the engine too long. Returns their number. */
    int tick(long nowNs) {
        List<TransferKey> late = byTransfer.entrySet().stream()
                .filter(entry -> nowNs - entry.getValue().dueNs >= 0)
                .map(Map.Entry::getKey)
                .toList();
        late.forEach(this::answerBusy);
        return late.size();
    }

    /** The earliest limit of a question, or {@code latestNs} when none is earlier. */
    long nextDeadlineNs(long latestNs) {
        long earliest = latestNs;
        for (Open open : byTransfer.values()) {
            earliest = open.dueNs - earliest < 0 ? open.dueNs : earliest;
        }
        return earliest;
    }

    int count() {
        return byTransfer.size();
    }
}
