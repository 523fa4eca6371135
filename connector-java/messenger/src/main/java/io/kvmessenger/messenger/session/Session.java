package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.PeerTally;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import java.util.ArrayList;
import java.util.List;

/**
 * One control link and the pair of incarnations it belongs to. A peer that comes back is another session.
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
    /** Where we dialled, or where the peer comes from; for sentences. */
    final String peerAddress;

    public State state;
    /** Once ready: what is counted of this peer. */
    public PeerTally figures = PeerTally.NONE;

    public String peerEngineId = "";
    long peerIncarnation;
    /** What both sides speak; 0 before they have agreed. */
    private int protocolVersion;

    private PeerSubject peerSubject;
    byte[] ownNonce = new byte[0];
    byte[] peerNonce = new byte[0];
    /** Of what was said in the handshake: {@link HandshakeProof#transcript}. */
    byte[] transcript = new byte[0];
    /** Null when there is no secret, and before both nonces are known. */
    SessionKeys keys;
    /** Seals what is sent; null until the peer can check it, and always when there is no secret. */
    FrameSeal sealOut;
    /** Checks what comes in; null until the peer is proven, and always when there is no secret. */
    FrameSeal sealIn;

    /** Outbound: when it was dialled. */
    long begunNs;

    long handshakeDeadlineNs;
    long lastHeardNs;
    long lastHeartbeatNs;
    long heartbeatsSent;

    /** Outbound: what the prefiller may write to us through. */
    public Admission admission;
    /** Outbound: what is to be said of transfers once the session is ready. */
    public final List<ControlFrame.Builder> waitingFrames = new ArrayList<>();

    /** Outbound: nothing admitted can write any more. */
    public boolean admissionClosed;

    /** Inbound: how we write to the decoder. */
    public Peer peer;

    public boolean peerReady;
    /** Inbound: of the last grant. */
    private long lastGrantId;

    public Session(long link, boolean inbound, String peerAddress, State state) {
        this.link = link;
        this.inbound = inbound;
        this.peerAddress = peerAddress;
        this.state = state;
    }

    /** What the peer has of that which both sides move; null before its description was found to fit. */
    public PeerSubject peerSubject() {
        return peerSubject;
    }

    /** The peer's description fits this side's. */
    public void fits(PeerSubject peer) {
        peerSubject = peer;
    }

    /** Both sides speak this version. */
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

    /** Inbound: whether this is the id of a grant that has not been named before; it has then. */
    public boolean takesGrant(long grantId) {
        if (grantId <= lastGrantId) {
            return false;
        }
        lastGrantId = grantId;
        return true;
    }

    /** The peer in a sentence. */
    public String peerName() {
        return peerEngineId.isEmpty() ? peerAddress : peerEngineId + " at " + peerAddress;
    }
}
