package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Heartbeat;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Consumer;

/**
 * Keeps a listener's places for the peers that have something under way: beyond {@link Capacities#decodersKept} it asks
 * ones without, by {@link Sieve}, to leave, and where every place is taken a peer waits for one before it is welcomed.
 *
 * <p>It ends no session. The dialler decides whether it leaves, since all work begins there: it alone knows what it is
 * about to send. Owned by the messenger's thread.
 */
final class IdlePeers {
    /** Refused field: the listener has reached its limit of peers. */
    private static final String DIALLERS = "decoders";
    /** Parts of a heartbeat after which idle peers are looked for again, while others wait for their places. */
    private static final int LOOKS_PER_HEARTBEAT = 8;

    /** Asks the peer of this session to leave. */
    private final Consumer<Session> ask;
    /** Welcomes a peer whose handshake has waited for a place. */
    private final BiConsumer<Session, Handshake.Step.Answer> welcome;

    private final Capacities capacities;
    /**
     * A peer that was asked and has not left within this time is busy, or of an earlier build; frames that follow a use
     * within it belong to that use.
     */
    private final long periodNs;

    private final Sieve<Session> attached = new Sieve<>();
    /** When each peer that was asked, and is still here, was asked last; oldest first. */
    private final Map<Session, Long> askedNs = new LinkedHashMap<>();

    private final Deque<Waiting> waiting = new ArrayDeque<>();
    /** Peers that were welcomed, attached or not. */
    private int placesTaken;

    private boolean looked;
    private long lookedNs;

    private record Waiting(Session session, Handshake.Step.Answer answer) {}

    IdlePeers(ProtocolLimits limits, Consumer<Session> ask, BiConsumer<Session, Handshake.Step.Answer> welcome) {
        this.capacities = limits.capacities();
        this.periodNs = limits.heartbeatNs();
        this.ask = ask;
        this.welcome = welcome;
    }

    /** Welcomes a peer, now or when there is a place for it. False if too many wait already, or none would ever leave. */
    boolean admit(Session session, Handshake.Step.Answer answer) {
        boolean isFull = placesTaken >= capacities.decodersMax();
        if (waiting.size() >= capacities.decodersMax() || (isFull && !session.mayLeave())) {
            return false;
        }
        waiting.add(new Waiting(session, answer));
        session.place = Session.Place.AWAITED;
        giveFreePlaces();
        return true;
    }

    /** Whether peers should be asked to leave. */
    boolean tooMany() {
        return placesTaken + waiting.size() > kept();
    }

    void onReady(Session session, long nowNs) {
        if (session.inbound) {
            session.lastUsedNs = nowNs;
            attached.add(session);
        }
    }

    /** The peer has sent a frame about what is moved. */
    void onFrame(Session session, long nowNs) {
        session.framesHandled++;
        askedNs.remove(session);
        if (nowNs - session.lastUsedNs >= periodNs) {
            attached.use(session);
            session.lastUsedNs = nowNs;
        }
    }

    /** Listener: whether the peer's end is what this side has asked for. */
    boolean letsGo(Session session) {
        return session.askedAfterFrames == session.framesHandled && session.atRest();
    }

    /**
     * Dialler: whether this side leaves. Nothing is under way here, and the listener had handled all that was sent when it
     * found that nothing is under way there: then neither side has anything that crosses the goodbye.
     */
    static boolean leaves(Session session, Heartbeat heartbeat) {
        return heartbeat.hasLeaveAfterFrames()
                && heartbeat.getLeaveAfterFrames() == session.framesSent
                && !session.inbound
                && session.takesWork()
                && session.atRest();
    }

    void onEnded(Session session) {
        attached.remove(session);
        askedNs.remove(session);
        switch (session.place) {
            case NONE -> {}
            case AWAITED -> waiting.removeIf(one -> one.session == session);
            case TAKEN -> placesTaken--;
        }
        session.place = Session.Place.NONE;
        giveFreePlaces();
    }

    private void giveFreePlaces() {
        while (placesTaken < capacities.decodersMax() && !waiting.isEmpty()) {
            Waiting next = waiting.removeFirst();
            next.session.place = Session.Place.TAKEN;
            placesTaken++;
            welcome.accept(next.session, next.answer);
        }
    }

    /**
     * Asks as many idle peers to leave as there are too many, but for those whose answers are on their way. A look may
     * visit every peer: one that comes soon after another does nothing.
     */
    int askIdle(long nowNs) {
        if (!tooMany() || (looked && nowNs - lookedNs < lookIntervalNs())) {
            return 0;
        }
        looked = true;
        lookedNs = nowNs;
        askedNs.values().removeIf(sinceNs -> nowNs - sinceNs >= periodNs);
        int asked = 0;
        int tooMany = placesTaken + waiting.size() - kept();
        while (askedNs.size() < tooMany) {
            Session idle = attached.next(this::mayBeAsked);
            if (idle == null) {
                break;
            }
            askedNs.put(idle, nowNs);
            idle.askedAfterFrames = idle.framesHandled;
            ask.accept(idle);
            asked++;
        }
        return asked;
    }

    /** When to ask again, if there are too many still. */
    long askAgainAtNs() {
        return lookedNs + lookIntervalNs();
    }

    private long lookIntervalNs() {
        return Math.max(1, waiting.isEmpty() ? periodNs : periodNs / LOOKS_PER_HEARTBEAT);
    }

    /** Why an idle peer leaves. */
    static String sentence(Subject.Roles roles) {
        return "nothing is under way, and the " + roles.listener() + " has too many " + roles.dialler()
                + "s: the next request dials again";
    }

    /** Why a peer is refused for which there was no place. */
    Misfit full(String engineId, Subject.Roles roles) {
        return new Misfit(
                DIALLERS,
                engineId + " serves " + capacities.decodersMax() + " " + roles.dialler()
                        + "s already, none of which has left for one more: use another "
                        + roles.listener(),
                MessengerMetric.HANDSHAKES_DROPPED);
    }

    /** So many stay, whatever they do. */
    private int kept() {
        return Math.min(capacities.decodersKept(), capacities.decodersMax());
    }

    private boolean mayBeAsked(Session session) {
        return session.takesWork() && !askedNs.containsKey(session) && session.atRest();
    }
}
