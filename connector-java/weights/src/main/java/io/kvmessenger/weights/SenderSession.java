package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.session.Misfit;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.Optional;

/** A sender's session with a host. State only, owned by the messenger's thread; {@link WeightSender} drives it. */
final class SenderSession extends Session {
    private final WeightSender sender;
    /** By which this sender knows the server; "" before it has attached. */
    String ticket = "";
    /** The host as a target of writes; null before it attached and after its paths ended. */
    Peer peer;
    /** The host's landing. */
    RegionDescriptor landing;
    /** The update under way; null while there is none. */
    Delivery delivery;

    SenderSession(WeightSender sender, long link, String peerAddress) {
        super(link, true, peerAddress);
        this.sender = sender;
    }

    @Override
    protected Optional<Misfit> misfit(ByteString peerDescription) {
        return sender.misfit(this, peerDescription);
    }

    @Override
    protected void attached(Attach attach) {
        sender.attached(this, attach);
    }

    @Override
    protected void onFrame(ControlFrame frame) {
        sender.onFrame(this, frame);
    }

    @Override
    protected void onEnded(String reason) {
        sender.onEnded(this, reason);
    }
}
