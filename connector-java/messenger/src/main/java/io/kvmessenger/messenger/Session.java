package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.ArrayList;
import java.util.List;

/**
 * One control link and the pair of incarnations it belongs to. A peer that comes back is another session.
 *
 * <p>State only, owned by the messenger's thread; {@link Sessions} drives it.
 */
final class Session {
    /** Where the link is in its life. */
    enum State {
        DIALLING,
        HANDSHAKING,
        READY,
        ENDED
    }

    final long link;
    /** The peer dialled us: it is a decoder and we are its prefiller. */
    final boolean inbound;
    /** Where we dialled, or where the peer comes from; for sentences. */
    final String peerAddress;

    State state;
    String peerEngineId = "";
    long peerIncarnation;
    KvGeometry peerGeometry;
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

    long handshakeDeadlineNs;
    long lastHeardNs;
    long lastHeartbeatNs;
    long heartbeatsSent;

    /** Outbound: what the prefiller may write to us through. */
    Admission admission;
    /** Outbound: what is to be said of transfers once the session is ready. */
    final List<ControlFrame.Builder> waitingFrames = new ArrayList<>();

    /** Outbound: nothing admitted can write any more. */
    boolean admissionClosed;

    /** Inbound: how we write to the decoder. */
    Peer peer;

    boolean peerReady;
    /** Inbound: the decoder's regions, by rank and memory. */
    List<List<RegionDescriptor>> peerRegions = List.of();
    /** Inbound: the decoder's kinds of context rows. */
    List<PeerContextRow> peerContext = List.of();
    /** Inbound: the decoder's ranks that the peer serves. */
    EngineRanks peerRanks;
    /** Inbound: the ranks of the decoder's engine that need something of ours; each of them speaks of each transfer. */
    EngineRanks needingRanks;

    Session(long link, boolean inbound, String peerAddress, State state) {
        this.link = link;
        this.inbound = inbound;
        this.peerAddress = peerAddress;
        this.state = state;
    }

    boolean ready() {
        return state == State.READY;
    }

    /** The peer in a sentence. */
    String peerName() {
        return peerEngineId.isEmpty() ? peerAddress : peerEngineId + " at " + peerAddress;
    }
}
