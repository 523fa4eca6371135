package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.kv.KvSession;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import java.util.ArrayList;
import java.util.List;

/** A decoder's session with a prefiller, which it has dialled. State only, owned by the messenger's thread. */
final class PrefillerSession extends KvSession {
    private final Decoder decoder;
    /** The prefiller's right to write here; null before the handshake is complete. */
    Admission admission;
    /** Nothing can be written through the admission any more. */
    boolean admissionClosed;
    /** This side has refused a write of it, and closes its data paths for that. */
    boolean refusedWrite;
    /** Frames about transfers, to be sent once the session is ready. */
    final List<ControlFrame.Builder> waitingFrames = new ArrayList<>();

    PrefillerSession(Side own, long link, String peerAddress, Decoder decoder) {
        super(own, link, false, peerAddress);
        this.decoder = decoder;
    }

    @Override
    protected void admit(Attach.Builder attach) {
        decoder.onAdmitting(this, attach);
    }

    @Override
    protected void onReady() {
        super.onReady();
        decoder.onReady(this);
    }

    @Override
    protected void onFrame(ControlFrame frame) {
        decoder.onFrame(this, frame);
    }

    @Override
    protected boolean atRest() {
        return decoder.atRest(this);
    }

    @Override
    protected void onLeaving() {
        decoder.onLeaving(this);
    }

    @Override
    protected void endTransfers(String reason) {
        decoder.onEnded(this, reason);
    }
}
