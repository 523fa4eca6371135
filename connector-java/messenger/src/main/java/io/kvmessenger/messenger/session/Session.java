package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.port.MessengerState.PeerRow;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.EnumSet;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;

/**
 * One control link and the pair of incarnations it belongs to. A reconnected peer is a new session.
 *
 * <p>A {@link Subject} extends it by what it keeps for a peer, and by what it does when something happens on the link.
 * Owned by the messenger's thread; {@link Sessions} drives it. It knows no transfer engine.
 */
public abstract class Session {
    /** The states of a session, in order; the table of docs/protocol.md. */
    public enum State implements ProtocolState<State> {
        DIALLING,
        HANDSHAKING,
        /** The peer has been welcomed; its Attach is awaited. Listener only. */
        WELCOMED,
        READY,
        ENDED;

        @Override
        public Set<State> next() {
            return switch (this) {
                case DIALLING -> EnumSet.of(HANDSHAKING, ENDED);
                case HANDSHAKING -> EnumSet.of(WELCOMED, READY, ENDED);
                case WELCOMED -> EnumSet.of(READY, ENDED);
                case READY -> EnumSet.of(ENDED);
                case ENDED -> EnumSet.noneOf(State.class);
            };
        }
    }

    /** What a listener has for a peer. */
    enum Place {
        NONE,
        /** The peer is proven, and no place is free. */
        AWAITED,
        TAKEN
    }

    public final long link;
    /** The peer dialled this side, which is the listener. */
    public final boolean inbound;
    /** The address that was dialled, or that the peer connected from; for sentences. */
    final String peerAddress;

    private State state;

    public String peerEngineId = "";
    long peerIncarnation;
    /** The agreed version; 0 before agreement. */
    private int protocolVersion;

    byte[] ownNonce = new byte[0];
    byte[] peerNonce = new byte[0];
    /** The handshake's messages so far: {@link HandshakeProof#transcript}. */
    byte[] transcript = new byte[0];
    /** Null without a secret, and before both nonces are known. */
    SessionKeys keys;
    /** Seals outgoing frames; null until the peer can verify seals, and always without a secret. */
    FrameSeal sealOut;
    /** Verifies incoming frames; null until the peer is proven, and always without a secret. */
    FrameSeal sealIn;

    /** Dialler: when it was dialled. */
    long begunNs;

    /** Why this side ends the session unless the peer gives a reason first; empty while it goes on. */
    private String endingReason = "";

    long endingDeadlineNs;

    long handshakeDeadlineNs;
    long lastHeardNs;
    long lastHeartbeatNs;
    long heartbeatsSent;
    /** Frames of the subject in this session, by which the listener shows that none is on its way. */
    long framesSent;

    long framesHandled;
    /** Listener: how many it had handled when it asked the peer to leave; -1 = it has not. */
    long askedAfterFrames = -1;
    /** Listener: when the peer's last use began, or it became ready. */
    long lastUsedNs;

    /** Listener: whether the peer has one of its places. */
    Place place = Place.NONE;

    long placeDeadlineNs;
    /** Both sides have nothing under way, and its end is no loss. */
    private boolean leaving;

    protected Session(long link, boolean inbound, String peerAddress) {
        this.link = link;
        this.inbound = inbound;
        this.peerAddress = peerAddress;
        this.state = inbound ? State.HANDSHAKING : State.DIALLING;
    }

    // ---- what the subject does

    /** Compares the description of a peer that is proven with this side's; empty if they fit. Called once. */
    protected abstract Optional<Misfit> misfit(ByteString peerDescription);

    /** Dialler, before Attach is sent: fills in what the listener needs of the subject. */
    protected void admit(Attach.Builder attach) {}

    /** Listener: the dialler has attached. May end the session. */
    protected void attached(Attach attach) {}

    protected void onReady() {}

    /** A frame of the subject, on a ready session. */
    protected abstract void onFrame(ControlFrame frame);

    /**
     * A frame on a ready session breaks a rule of the subject: answers it, if it concerns a part of the subject alone.
     *
     * @param why a sentence
     * @return whether the session goes on; if not, it is ended
     */
    protected boolean survivesBroken(ControlFrame frame, String why) {
        return false;
    }

    /**
     * Whether nothing is under way that the end of the session would affect, as far as this side knows. A subject that
     * does not say so keeps its sessions.
     */
    protected boolean atRest() {
        return false;
    }

    /** Whether peers of this kind leave when they are asked to and nothing is under way. */
    protected boolean mayLeave() {
        return false;
    }

    /** Dialler: nothing more is sent on this session, whose peer closes it. What comes next needs another one. */
    protected void onLeaving() {}

    /** This side is about to end the session, having waited for the peer's reason: frames to it still leave. */
    protected void onUnexplained(String reason) {}

    /** The link is closed. Called once for each session. */
    protected abstract void onEnded(String reason);

    // ---- what the subject may ask

    /** Distinguishes the peer's process from an earlier one at the same address; known once the session is ready. */
    public long peerIncarnation() {
        return peerIncarnation;
    }

    public void agreesUpon(int version) {
        protocolVersion = version;
    }

    /** Whether the peer understands what was added to the protocol with this version. */
    public boolean speaks(int version) {
        return protocolVersion >= version;
    }

    public State state() {
        return state;
    }

    /** @throws IllegalStateException if that state may not follow */
    void become(State next) {
        state = ProtocolState.change(state, next);
    }

    public boolean ready() {
        return state == State.READY;
    }

    /** Whether it only waits for the peer's reason to end: nothing may begin on it. */
    public boolean ending() {
        return !endingReason.isEmpty();
    }

    /** Whether something may begin on it. */
    public boolean takesWork() {
        return ready() && !ending();
    }

    void endBy(long deadlineNs, String reason) {
        endingDeadlineNs = deadlineNs;
        endingReason = reason;
    }

    /** The time that the peer waits for its place is not its handshake's, which goes on afterwards. */
    void awaitPlace(long nowNs, ProtocolLimits limits) {
        placeDeadlineNs = nowNs + limits.placeWaitNs();
        handshakeDeadlineNs = nowNs + limits.connectLimitNs();
    }

    /** Nothing is under way on either side. */
    void leave() {
        leaving = true;
    }

    boolean leaving() {
        return leaving;
    }

    String endingReason() {
        return endingReason;
    }

    /** A reason that the peer has given, with what this side had noticed before. */
    public String explained(String peersReason) {
        return ending() ? peersReason + "; before that, " + endingReason : peersReason;
    }

    /** For how long the peer has sent no frame. */
    public long silentNs(long nowNs) {
        return nowNs - lastHeardNs;
    }

    /** For the status page. */
    PeerRow row(Subject.Roles roles, long nowNs) {
        return new PeerRow(
                peerName(),
                inbound ? roles.dialler() : roles.listener(),
                state.name().toLowerCase(Locale.ROOT),
                state == State.DIALLING ? 0 : nowNs - lastHeardNs);
    }

    public String peerName() {
        return peerEngineId.isEmpty() ? peerAddress : peerEngineId + " at " + peerAddress;
    }

    /**
     * Encrypts the one secret that Attach carries, with a key of the session that serves no other purpose; a second
     * call decrypts it. Without a shared secret it stays as it is.
     */
    public ByteString concealed(ByteString secret) {
        return keys == null ? secret : keys.concealed(secret);
    }
}
