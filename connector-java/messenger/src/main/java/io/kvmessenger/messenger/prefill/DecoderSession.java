package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.KvSession;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Peer;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/** A prefiller's session with a decoder, which has dialled. State only, owned by the messenger's thread. */
final class DecoderSession extends KvSession {
    private final AttachedDecoders decoders;
    /** The decoder as a target of this side's writes; null before it attached and after its data paths ended. */
    Peer peer;

    boolean peerReady;
    private long lastGrantId;

    /** Its announcements of answers that have not come. */
    final Map<TransferKey, Announcement> announced = new HashMap<>();
    /** Bytes of the page lists of its grants that wait for their prefill. */
    long grantBytesWaiting;

    DecoderSession(Side own, long link, String peerAddress, AttachedDecoders decoders) {
        super(own, link, true, peerAddress);
        this.decoders = decoders;
    }

    /** Whether writes to the decoder may be submitted. */
    boolean writable() {
        return peerReady && !ending();
    }

    /** Whether this grant id is new in the session; it is recorded as used. */
    boolean takesGrant(long grantId) {
        if (grantId <= lastGrantId) {
            return false;
        }
        lastGrantId = grantId;
        return true;
    }

    @Override
    protected void attached(Attach attach) {
        decoders.onAttached(this, attach);
    }

    @Override
    protected Optional<Peer> writtenTo() {
        return Optional.ofNullable(peer);
    }

    @Override
    protected void onFrame(ControlFrame frame) {
        decoders.onFrame(this, frame);
    }

    @Override
    protected boolean survivesBroken(ControlFrame frame, String why) {
        return decoders.survivesBroken(this, frame, why);
    }

    @Override
    protected void onUnexplained(String reason) {
        decoders.stopAll(this, reason);
    }

    @Override
    protected boolean atRest() {
        return peerReady && announced.isEmpty() && grantBytesWaiting == 0 && decoders.atRest(this);
    }

    @Override
    protected void endTransfers(String reason) {
        decoders.onEnded(this, reason);
    }
}
