package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.PeerTally;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import java.util.ArrayList;
import java.util.List;

/**
 * One control link and the pair of incarnations it belongs to. A reconnected peer is a new session.
 *
 * <p>State only, owned by the messenger's thread; {@link Sessions} drives it.
 */
public final class Session {
    /** The states of a link, in order. */
    public enum State {
        DIALLING,
        HANDSHAKING,
        READY,
        ENDED
    }

    public final long link;
    /** The peer dialled us: it is a decoder and we are its prefiller. */
    public final boolean inbound;
    /** The address that was dialled, or that the peer connected from; for sentences. */
    final String peerAddress;

    public State state;
    /** Counts the metrics of this peer once the session is ready. */
    public PeerTally figures = PeerTally.NONE;

    public String peerEngineId = "";
    long peerIncarnation;
    /** The agreed version; 0 before agreement. */
    private int protocolVersion;

    private PeerSubject peerSubject;
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

    /** Outbound: when it was dialled. */
    long begunNs;

    long handshakeDeadlineNs;
    long lastHeardNs;
    long lastHeartbeatNs;
    long heartbeatsSent;

    /** Outbound: the prefiller's right to write here. */
    public Admission admission;
    /** Outbound: frames about transfers, to be sent once the session is ready. */
    public final List<ControlFrame.Builder> waitingFrames = new ArrayList<>();

    /** Outbound: nothing can be written through the admission any more. */
    public boolean admissionClosed;

    /** Inbound: the decoder as a target of this side's writes. */
    public Peer peer;

    public boolean peerReady;
    /** Inbound: id of the last grant. */
    private long lastGrantId;

    public Session(long link, boolean inbound, String peerAddress, State state) {
        this.link = link;
        this.inbound = inbound;
        this.peerAddress = peerAddress;
        this.state = state;
    }

    /** Distinguishes the peer's process from an earlier one at the same address; known once the session is ready. */
    public long peerIncarnation() {
        return peerIncarnation;
    }

    /** The peer's side of the subject; null before its description was found to fit. */
    public PeerSubject peerSubject() {
        return peerSubject;
    }

    /** Records that the peer's description fits this side's. */
    public void fits(PeerSubject peer) {
        peerSubject = peer;
    }

    /** Records the agreed version of the protocol. */
    public void agreesUpon(int version) {
        protocolVersion = version;
    }

    /** Whether the peer understands what was added to the protocol with this version. */
    public boolean speaks(int version) {
        return protocolVersion >= version;
    }

    public boolean ready() {
        return state == State.READY;
    }

    /** Inbound: whether this grant id is new in the session; it is recorded as used. */
    public boolean takesGrant(long grantId) {
        if (grantId <= lastGrantId) {
            return false;
        }
        lastGrantId = grantId;
        return true;
    }

    /** For how long the peer has sent no frame. */
    public long silentNs(long nowNs) {
        return nowNs - lastHeardNs;
    }

    /** The peer as the subject of a sentence. */
    public String peerName() {
        return peerEngineId.isEmpty() ? peerAddress : peerEngineId + " at " + peerAddress;
    }
}
