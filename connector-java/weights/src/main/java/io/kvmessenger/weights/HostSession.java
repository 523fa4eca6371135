package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.session.Misfit;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import java.util.Optional;

/** A host's session with a sender. State only, owned by the messenger's thread; {@link WeightReceiver} drives it. */
final class HostSession extends Session {
    private final WeightReceiver receiver;
    /** By which the sender knows which server this is. */
    final String ticket;
    /** Why the sender can write nothing here; "" if it can. */
    final String refusal;
    /** The sender's right to write here; null before it is ready. */
    Admission admission;

    HostSession(WeightReceiver receiver, long link, String peerAddress, String ticket, String refusal) {
        super(link, false, peerAddress);
        this.receiver = receiver;
        this.ticket = ticket;
        this.refusal = refusal;
    }

    @Override
    protected Optional<Misfit> misfit(ByteString peerDescription) {
        return receiver.misfit(this, peerDescription);
    }

    @Override
    protected void admit(Attach.Builder attach) {
        receiver.admit(this, attach);
    }

    @Override
    protected void onFrame(ControlFrame frame) {
        receiver.onFrame(this, frame);
    }

    @Override
    protected void onEnded(String reason) {
        receiver.onEnded(this, reason);
    }
}
