package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerState.PeerRow;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.FrameVersions;
import io.kvmessenger.messenger.wire.Heartbeat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.random.RandomGenerator;

/**
 * Establishes links, keeps them alive and declares them lost: links, heartbeats, silence.
 *
 * <p>The listener speaks first (Challenge), the dialler answers (Hello), is welcomed, and attaches ({@link Handshake}).
 * Either side may refuse. Owned by the messenger's thread. It does not know what is moved; the {@link Subject} does.
 */
public final class Sessions {
    /** Makes the state of a session that is being dialled. */
    public interface Opening<S extends Session> {
        S session(long link, String peerAddress);
    }

    private final MessengerIdentity identity;
    private final ControlNetwork network;
    private final ProtocolLimits limits;
    private final Tally tally;
    private final RandomGenerator random;
    private final PeerWarnings warnings;
    private final Map<Long, Session> byLink = new LinkedHashMap<>();
    /** Links that peers opened and have not attached yet. */
    private final OpenHandshakes<Session> pending = new OpenHandshakes<>();

    private int readyCount;
    /**
     * Lower bound of the next deadline; {@link #tick} recomputes it, because received frames only move deadlines back.
     */
    private final EarliestDue due = new EarliestDue();
    /** Number of sessions that ticks visited. The cost of a duty cycle must not grow with the number of peers. */
    private long visits;
    /** Set once, before any link. */
    private Subject subject;

    private Handshake handshake;
    private final IdlePeers idle;
    /** Sent to every peer from {@link #sayGoodbye} on; null before. */
    private ControlFrame.Builder goodbye;

    public Sessions(
            MessengerIdentity identity,
            ControlNetwork network,
            ProtocolLimits limits,
            Tally tally,
            RandomGenerator random,
            PeerWarnings warnings) {
        this.identity = identity;
        this.network = network;
        this.limits = limits;
        this.tally = tally;
        this.random = random;
        this.warnings = warnings;
        this.idle = new IdlePeers(limits, session -> send(session, LinkFrames.askingToLeave(session)), this::welcome);
    }

    /** Carries this subject from now on. Called once, before any link is opened. */
    public void carry(Subject carried) {
        if (subject != null) {
            throw new AssertionError("a messenger carries one subject");
        }
        subject = carried;
        handshake = new Handshake(identity, carried, random);
    }

    /** Dials a peer; the session may be used at once, and is ready later. */
    public <S extends Session> S dial(String host, int port, Opening<S> opening, long nowNs) {
        long link = network.dial(host, port);
        S session = opening.session(link, host + ":" + port);
        session.begunNs = nowNs;
        session.handshakeDeadlineNs = nowNs + limits.connectLimitNs();
        byLink.put(link, session);
        due.add(session.handshakeDeadlineNs);
        return session;
    }

    public void onLinkOpened(long link, boolean inbound, String peerAddress, long nowNs) {
        if (inbound && goodbye != null) {
            network.send(link, goodbye.build());
            network.close(link);
            return;
        }
        Session session = byLink.get(link);
        if (!inbound && session == null) {
            network.close(link); // ended while it was being dialled
            return;
        }
        if (inbound) {
            session = subject.accept(link, peerAddress);
            session.handshakeDeadlineNs = nowNs + limits.connectLimitNs();
            makeRoomForHandshake();
            pending.add(session, peerAddress.substring(0, Math.max(0, peerAddress.lastIndexOf(':'))));
            byLink.put(link, session);
            due.add(session.handshakeDeadlineNs);
            send(session, handshake.challenge(session));
        }
        if (session != null) {
            if (session.state() == Session.State.DIALLING) {
                session.become(Session.State.HANDSHAKING);
            }
            session.lastHeardNs = nowNs;
        }
    }

    public void onLinkClosed(long link, String reason) {
        Session session = byLink.remove(link);
        if (session != null && session.ending()) {
            warn(session, session.endingReason());
            ended(session, session.endingReason());
        } else if (session != null) {
            warn(session, session.peerName() + ": " + reason);
            ended(session, reason);
        }
    }

    public void onFrame(long link, ControlFrame frame, long nowNs) {
        Session session = byLink.get(link);
        if (session == null) {
            return; // closed by us while the frame was on its way
        }
        if (session.sealIn != null && !session.sealIn.proves(frame)) {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            end(
                    session,
                    session.peerName() + " sent " + frame.getBodyCase()
                            + " without the seal of the one that proved the shared_secret: something on the way changes or"
                            + " makes control frames");
            return;
        }
        String broken = FrameRules.broken(frame, subject);
        if (!broken.isEmpty()) {
            onBroken(session, frame, session.peerName() + " sent " + frame.getBodyCase() + " with " + broken, nowNs);
            return;
        }
        session.lastHeardNs = nowNs;
        if (!session.speaks(FrameVersions.since(frame.getBodyCase()))) {
            outOfPlace(session, frame.getBodyCase());
            return;
        }
        switch (frame.getBodyCase()) {
            case HEARTBEAT -> onHeartbeat(session, frame.getHeartbeat(), nowNs);
            case CHALLENGE -> follow(session, frame, handshake.onChallenge(session, frame.getChallenge()), nowNs);
            case HELLO -> follow(session, frame, handshake.onHello(session, frame.getHello()), nowNs);
            case WELCOME -> follow(session, frame, handshake.onWelcome(session, frame.getWelcome()), nowNs);
            case ATTACH -> onAttach(session, frame.getAttach(), nowNs);
            case REFUSAL -> {
                tally.add(MessengerMetric.LINKS_REFUSED, 1);
                hangUp(
                        session,
                        session.explained("refused by " + session.peerName() + ": "
                                + PeerText.oneLine(frame.getRefusal().getSentence())));
            }
            case GOODBYE -> {
                if (frame.getGoodbye().getIdle() && idle.letsGo(session)) {
                    session.leave();
                }
                hangUp(
                        session,
                        session.explained(session.peerName() + " said goodbye: "
                                + PeerText.oneLine(frame.getGoodbye().getSentence())));
            }
            case BODY_NOT_SET -> outOfPlace(session, frame.getBodyCase());
            default -> { // the subject's
                if (session.ready()) {
                    idle.onFrame(session, nowNs);
                    session.onFrame(frame);
                } else {
                    outOfPlace(session, frame.getBodyCase());
                }
            }
        }
    }

    private void onBroken(Session session, ControlFrame frame, String why, long nowNs) {
        if (session.ready() && session.survivesBroken(frame, why)) {
            idle.onFrame(session, nowNs);
            session.lastHeardNs = nowNs;
        } else {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            end(session, why);
        }
    }

    /** Sends heartbeats, and ends silent sessions and late handshakes. Visits no session before one is due. */
    public int tick(long nowNs) {
        if (!due.take(nowNs)) {
            return 0;
        }
        int work = 0;
        for (Session session : List.copyOf(byLink.values())) {
            visits++;
            work += tick(session, nowNs);
        }
        byLink.values().forEach(session -> due.add(nowNs + untilDueNs(session, nowNs)));
        return work + askIdle(nowNs);
    }

    long visits() {
        return visits;
    }

    private int tick(Session session, long nowNs) {
        if (!session.ready()) {
            if (session.place == Session.Place.AWAITED && nowNs - session.placeDeadlineNs >= 0) {
                refuse(session, idle.full(identity.engineId(), subject.roles()));
                return 1;
            }
            if (nowNs - session.handshakeDeadlineNs >= 0) {
                tally.add(MessengerMetric.HANDSHAKES_DROPPED, 1);
                end(
                        session,
                        session.peerName() + " did not complete the handshake within "
                                + limits.connectLimitNs() / 1_000_000 + " ms (connect_limit_seconds): look whether a"
                                + " messenger is at that address, and what may hold its frames up");
                return 1;
            }
            return 0;
        }
        if (session.ending() && nowNs - session.endingDeadlineNs >= 0) {
            session.onUnexplained(session.endingReason());
            end(session, session.endingReason());
            return 1;
        }
        if (nowNs - session.lastHeardNs >= limits.lostAfterNs()) {
            tally.add(MessengerMetric.PEERS_SILENT, 1);
            end(
                    session,
                    session.peerName() + " was silent for " + limits.lostAfterNs() / 1_000_000
                            + " ms (silence_limit_seconds: " + limits.silenceLimitNs() / 1_000_000 + " ms)");
            return 1;
        }
        if (nowNs - session.lastHeartbeatNs >= limits.heartbeatNs()) {
            if (nowNs - session.lastHeardNs >= 2 * limits.heartbeatNs()) {
                tally.add(MessengerMetric.HEARTBEATS_MISSED, 1);
            }
            session.lastHeartbeatNs = nowNs;
            send(session, LinkFrames.heartbeat(session));
            return 1;
        }
        return 0;
    }

    /** Tells the peer the reason, closes the link and ends its session. */
    public void end(Session session, String reason) {
        if (byLink.containsKey(session.link) && session.state() != Session.State.DIALLING && goodbye == null) {
            send(session, LinkFrames.goodbye(reason));
        }
        hangUp(session, reason);
    }

    /**
     * Ends a session whose data paths have ended. The peer's own reason may be on its way by the link, and is waited for
     * within a limit: the end of one channel says nothing of what another has delivered. A link that ends without a word
     * leaves this reason.
     */
    public void endUnlessExplained(Session session, String reason, long nowNs) {
        if (!session.ready()) {
            end(session, reason);
        } else if (!session.ending()) {
            session.endBy(nowNs + limits.lastWordWaitNs(), reason);
            due.add(session.endingDeadlineNs);
        }
    }

    /** Closes a link whose peer knows the reason, and ends its session. */
    private void hangUp(Session session, String reason) {
        if (byLink.remove(session.link) != null) {
            network.close(session.link);
            warn(session, reason);
            ended(session, reason);
        }
    }

    /** Failures of unproven peers are counted, but not logged one by one. */
    private void warn(Session session, String reason) {
        if (goodbye == null && !session.leaving() && (!session.inbound || session.peerNonce.length > 0)) {
            warnings.add(session.peerAddress, reason);
        }
    }

    /**
     * Says goodbye on every link and accepts no new one. A session ends when its peer closes the link, having read
     * everything sent before: if the data paths closed first, the peer might take that for a fault.
     */
    public void sayGoodbye(String reason) {
        goodbye = LinkFrames.goodbye(reason);
        for (Session session : List.copyOf(byLink.values())) {
            send(session, goodbye);
            if (!session.ready()) {
                end(session, reason);
            }
        }
    }

    /** Says goodbye on every link, closes it without waiting for the peer, and accepts no new one. */
    public void endAll(String reason) {
        goodbye = LinkFrames.goodbye(reason);
        for (Session session : List.copyOf(byLink.values())) {
            send(session, goodbye);
            end(session, reason);
        }
    }

    /** Handling a frame has met a bug: its session ends, the others go on. */
    public void endBroken(long link, ControlFrame.BodyCase frame, Throwable bug) {
        Session session = byLink.get(link);
        if (session != null) {
            tally.add(MessengerMetric.FAULTS_CONTAINED, 1);
            end(session, "a bug in the messenger was met by " + frame + " from " + session.peerName() + ": " + bug);
        }
    }

    public int count() {
        return byLink.size();
    }

    public void send(Session session, ControlFrame.Builder frame) {
        if (!session.speaks(FrameVersions.since(frame.getBodyCase()))) {
            throw new AssertionError(session.peerName() + " does not know " + frame.getBodyCase());
        }
        if (session.state() != Session.State.ENDED) {
            session.framesSent += LinkFrames.isOfLink(frame.getBodyCase()) ? 0 : 1;
            network.send(session.link, session.sealOut == null ? frame.build() : session.sealOut.seal(frame));
        }
    }

    public int readyCount() {
        return readyCount;
    }

    /** All peers with a link, including those being dialled. */
    public List<PeerRow> rows(long nowNs) {
        return byLink.values().stream()
                .map(session -> session.row(subject.roles(), nowNs))
                .toList();
    }

    /** The earliest moment at which {@link #tick} has something to do. */
    public long nextDeadlineNs(long nowNs) {
        return nowNs + due.waitNs(nowNs, limits.heartbeatNs());
    }

    private long untilDueNs(Session session, long nowNs) {
        if (!session.ready()) {
            return (session.place == Session.Place.AWAITED ? session.placeDeadlineNs : session.handshakeDeadlineNs)
                    - nowNs;
        }
        long untilDueNs = Math.min(
                session.lastHeartbeatNs + limits.heartbeatNs() - nowNs,
                session.lastHeardNs + limits.lostAfterNs() - nowNs);
        return session.ending() ? Math.min(untilDueNs, session.endingDeadlineNs - nowNs) : untilDueNs;
    }

    /** Closes a handshake above the limit. */
    private void makeRoomForHandshake() {
        if (pending.count() >= limits.capacities().handshakesMax()) {
            tally.add(MessengerMetric.HANDSHAKES_DROPPED, 1);
            Session one = pending.ofTheFullest();
            end(
                    one,
                    one.peerName() + " had not completed its handshake when "
                            + limits.capacities().handshakesMax() + " other links had not completed theirs");
        }
    }

    private void ended(Session session, String reason) {
        pending.remove(session);
        if (session.ready()) {
            readyCount--;
            tally.add(session.leaving() ? MessengerMetric.LINKS_IDLED : MessengerMetric.LINKS_LOST, 1);
        }
        session.become(Session.State.ENDED);
        try {
            session.onEnded(reason);
        } finally {
            idle.onEnded(session);
        }
    }

    /** Does what follows a message of the handshake. */
    private void follow(Session session, ControlFrame message, Handshake.Step step, long nowNs) {
        switch (step) {
            case Handshake.Step.Answer answer -> {
                if (session.inbound) {
                    admit(session, answer, nowNs);
                } else {
                    answer(session, answer);
                }
            }
            case Handshake.Step.Proven proven -> {
                network.trust(session.link);
                Attach.Builder attach = Attach.newBuilder();
                session.admit(attach);
                send(session, ControlFrame.newBuilder().setAttach(attach));
                ready(session, nowNs);
            }
            case Handshake.Step.Refused refused -> refuse(session, refused.why());
            case Handshake.Step.OutOfPlace outOfPlace -> outOfPlace(session, message.getBodyCase());
        }
    }

    /** The peer is proven, and fits: it is welcomed as soon as there is a place for it. */
    private void admit(Session session, Handshake.Step.Answer answer, long nowNs) {
        if (!idle.admit(session, answer)) {
            refuse(session, idle.full(identity.engineId(), subject.roles()));
        } else if (session.place == Session.Place.AWAITED) {
            pending.remove(session);
            session.awaitPlace(nowNs, limits);
            due.add(session.placeDeadlineNs);
            askIdle(nowNs);
        }
    }

    private void welcome(Session session, Handshake.Step.Answer answer) {
        network.trust(session.link); // its next frames may be long, and come as soon as it is welcome
        answer(session, answer);
        if (session.state() != Session.State.ENDED) {
            session.become(Session.State.WELCOMED);
        }
    }

    private void answer(Session session, Handshake.Step.Answer answer) {
        send(session, answer.frame());
        session.sealOut = answer.seal();
    }

    /** Asks idle peers to leave, now and, while there are too many, again soon. */
    private int askIdle(long nowNs) {
        int asked = goodbye == null ? idle.askIdle(nowNs) : 0;
        if (goodbye == null && idle.tooMany()) {
            due.add(idle.askAgainAtNs());
        }
        return asked;
    }

    /** Leaves if asked to; the peer closes the link, having read all that was sent. */
    private void onHeartbeat(Session session, Heartbeat heartbeat, long nowNs) {
        if (goodbye != null || !IdlePeers.leaves(session, heartbeat)) {
            return;
        }
        String sentence = IdlePeers.sentence(subject.roles());
        send(session, LinkFrames.goodbyeOfIdle(sentence));
        session.leave();
        session.endBy(nowNs + limits.lastWordWaitNs(), sentence);
        due.add(session.endingDeadlineNs);
        session.onLeaving();
    }

    private void onAttach(Session session, Attach attach, long nowNs) {
        if (session.state() != Session.State.WELCOMED) {
            outOfPlace(session, ControlFrame.BodyCase.ATTACH);
            return;
        }
        session.attached(attach);
        if (session.state() != Session.State.ENDED) {
            ready(session, nowNs);
        }
    }

    private void ready(Session session, long nowNs) {
        session.become(Session.State.READY);
        readyCount++;
        pending.remove(session);
        session.lastHeartbeatNs = nowNs;
        due.add(nowNs + Math.min(limits.heartbeatNs(), limits.lostAfterNs()));
        tally.add(MessengerMetric.LINKS_OPENED, 1);
        if (!session.inbound) {
            tally.observe(MessengerMetric.CONNECT_SECONDS, (nowNs - session.begunNs) / 1e9);
        }
        session.onReady();
        idle.onReady(session, nowNs);
        askIdle(nowNs);
    }

    private void refuse(Session session, Misfit why) {
        String sentence = PeerText.oneLine(why.sentence()); // it may quote the peer
        tally.add(MessengerMetric.LINKS_REFUSED, 1);
        tally.add(why.counted(), 1);
        send(session, LinkFrames.refusal(why.field(), sentence));
        hangUp(session, sentence);
    }

    private void outOfPlace(Session session, ControlFrame.BodyCase kind) {
        tally.add(MessengerMetric.FRAMES_INVALID, 1);
        end(session, session.peerName() + " sent " + kind + " where the protocol does not allow it");
    }
}
