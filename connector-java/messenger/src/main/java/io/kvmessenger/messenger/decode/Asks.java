package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.kv.KvFrameRules;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.PullOutcome;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Ask;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.FrameVersions;
import io.kvmessenger.messenger.wire.Offer;
import io.kvmessenger.messenger.wire.OfferWire;
import io.kvmessenger.messenger.wire.PromptWire;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Predicate;

/**
 * The engine's questions for what other engines' prefix caches hold, until each is answered, once.
 *
 * <p>Owned by the messenger's thread. An answered question is forgotten: the fetch or the decline that follows names its
 * transfer like any other.
 */
final class Asks {
    /** A question on its way. The frame leaves when the session is ready. */
    private record Open(EngineCommand.Ask ask, PrefillerSession session, long dueNs) {
        boolean isOf(PrefillerSession other, TransferKey transfer) {
            return session == other && ask.transfer().equals(transfer);
        }
    }

    private final PrefillerLinks links;
    private final Sessions sessions;
    private final EngineEvents engine;
    private final Tally tally;
    private final Map<String, Open> byRequest = new LinkedHashMap<>();

    Asks(PrefillerLinks links, Sessions sessions, EngineEvents engine, Tally tally) {
        this.links = links;
        this.sessions = sessions;
        this.engine = engine;
        this.tally = tally;
    }

    void ask(EngineCommand.Ask ask, long nowNs) {
        if (byRequest.containsKey(ask.request())) {
            engine.log(
                    EngineLog.Level.ERROR,
                    "request " + ask.request() + " asked twice for a cached prefix; the second is ignored");
            return;
        }
        String broken = KvFrameRules.broken(ask);
        if (!broken.isEmpty()) {
            engine.log(EngineLog.Level.ERROR, "request " + ask.request() + " asks for a cached prefix with " + broken);
            report(ask, 0, OfferOutcome.MISFIT);
        } else if (byRequest.size() >= ProtocolLimits.ASKS_OPEN_MAX
                || askedTokens() + tokensOf(ask) > ProtocolLimits.ASKED_TOKENS_MAX) {
            report(ask, 0, OfferOutcome.BUSY);
        } else {
            PrefillerSession session = links.at(ask.source(), nowNs);
            Open open = new Open(ask, session, nowNs + ask.limitNs());
            byRequest.put(ask.request(), open);
            if (session.ready()) {
                send(open);
            }
        }
    }

    private int askedTokens() {
        return byRequest.values().stream().mapToInt(open -> tokensOf(open.ask)).sum();
    }

    private static int tokensOf(EngineCommand.Ask ask) {
        return ask.prompt().tokenIds().length;
    }

    private void send(Open open) {
        if (!open.session.speaks(FrameVersions.OFFERS)) {
            end(open, 0, OfferOutcome.PEER_TOO_OLD);
            return;
        }
        Ask ask = OfferWire.ask(open.ask.transfer(), PromptWire.encode(open.ask.prompt()));
        sessions.send(open.session, ControlFrame.newBuilder().setAsk(ask));
    }

    void onReady(PrefillerSession session) {
        each(open -> open.session == session, this::send);
    }

    /** An answer to a question that has ended is ignored: its decline is on the way, or the session's end. */
    void onOffer(PrefillerSession session, Offer offer) {
        TransferKey transfer = OfferWire.transfer(offer);
        each(open -> open.isOf(session, transfer), open -> answer(open, offer));
    }

    private void answer(Open open, Offer offer) {
        int heldTokens = offer.getHeldTokens();
        boolean tooMany = Integer.compareUnsigned(heldTokens, open.ask.prompt().tokenIds().length) > 0;
        if (tooMany) {
            links.decline(open.session, open.ask.transfer());
        }
        end(open, tooMany ? 0 : heldTokens, tooMany ? OfferOutcome.MISFIT : OfferWire.outcome(offer));
    }

    /**
     * The engine does not want the answer any more. Returns whether the question was still here, so that the peer knows
     * nothing of the transfer.
     */
    boolean dropUnsent(TransferKey transfer) {
        boolean unsent = false;
        for (Open open : List.copyOf(byRequest.values())) {
            if (open.ask.transfer().equals(transfer)) {
                byRequest.remove(open.ask.request());
                unsent = !open.session.ready();
            }
        }
        return unsent;
    }

    void endBroken(EngineCommand.Ask ask) {
        byRequest.remove(ask.request());
        report(ask, 0, OfferOutcome.UNREACHABLE);
    }

    /** Counts what came of a request that might have pulled. */
    void pullEnded(EngineCommand.PullEnded pull) {
        tally.add(MessengerMetric.PULLS_ENDED, pull.outcome());
        if (pull.askNs() > 0) {
            tally.observe(MessengerMetric.ASK_SECONDS, pull.askNs() / 1e9);
        }
        if (pull.outcome() == PullOutcome.ARRIVED) {
            tally.add(MessengerMetric.TOKENS_PULLED, pull.tokenCount());
            tally.observe(MessengerMetric.PULL_SECONDS, pull.pullNs() / 1e9);
        }
    }

    boolean anyAt(PrefillerSession session) {
        return byRequest.values().stream().anyMatch(open -> open.session == session);
    }

    void onEnded(PrefillerSession session) {
        each(open -> open.session == session, open -> end(open, 0, OfferOutcome.UNREACHABLE));
    }

    void shutDown() {
        each(_ -> true, open -> end(open, 0, OfferOutcome.UNREACHABLE));
    }

    /** Ends the questions that have waited for too long. Returns their number. */
    int tick(long nowNs) {
        if (byRequest.isEmpty()) {
            return 0;
        }
        int before = byRequest.size();
        each(open -> nowNs - open.dueNs >= 0, this::giveUp);
        return before - byRequest.size();
    }

    private void giveUp(Open open) {
        if (open.session.ready()) { // else the question has not left
            links.decline(open.session, open.ask.transfer());
        }
        end(open, 0, OfferOutcome.LATE);
    }

    private void end(Open open, int heldTokens, OfferOutcome outcome) {
        byRequest.remove(open.ask.request());
        report(open.ask, heldTokens, outcome);
    }

    private void report(EngineCommand.Ask ask, int heldTokens, OfferOutcome outcome) {
        tally.add(MessengerMetric.ASKS_ANSWERED, outcome);
        engine.offered(ask.request(), heldTokens, outcome);
    }

    private void each(Predicate<Open> chosen, Consumer<Open> action) {
        List.copyOf(byRequest.values()).stream().filter(chosen).forEach(action);
    }

    /** The earliest limit of a question, or {@code latestNs} when none is earlier. */
    long nextDeadlineNs(long latestNs) {
        long earliest = latestNs;
        for (Open open : byRequest.values()) {
            earliest = open.dueNs - earliest < 0 ? open.dueNs : earliest;
        }
        return earliest;
    }

    int count() {
        return byRequest.size();
    }
}
