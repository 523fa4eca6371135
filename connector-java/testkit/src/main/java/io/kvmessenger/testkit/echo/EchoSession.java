package io.kvmessenger.testkit.echo;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.session.Misfit;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.ArrayDeque;
import java.util.Optional;
import java.util.Queue;

/** A session that echoes. State only, owned by the messenger's thread; {@link EchoSubject} drives it. */
final class EchoSession extends Session {
    private final EchoSubject subject;
    /** Dialler: the listener's right to write here; null before it is ready. */
    Admission admission;
    /** Dialler: why the session has ended, until nothing lands any more. */
    String endedReason = "";
    /** Listener: the dialler as a target of writes; null before it attached and after its paths ended. */
    Peer peer;

    boolean peerReady;
    /** Listener: the dialler's region. */
    RegionDescriptor target;
    /** Listener: what is not being written yet. */
    final Queue<EchoFrames.Ask> asked = new ArrayDeque<>();

    EchoSession(EchoSubject subject, long link, boolean inbound, String peerAddress) {
        super(link, inbound, peerAddress);
        this.subject = subject;
    }

    @Override
    protected Optional<Misfit> misfit(ByteString peerDescription) {
        return peerDescription.equals(subject.description())
                ? Optional.empty()
                : Optional.of(new Misfit(
                        "word",
                        "word is '" + peerDescription.toStringUtf8() + "' at " + peerName() + ", expected '"
                                + subject.description().toStringUtf8() + "'",
                        MessengerMetric.GEOMETRIES_DIFFERENT));
    }

    @Override
    protected void admit(Attach.Builder attach) {
        subject.asks().admit(this, attach);
    }

    @Override
    protected void attached(Attach attach) {
        subject.answers().attached(this, attach);
    }

    @Override
    protected void onReady() {
        subject.asks().onReady(this);
    }

    @Override
    protected void onFrame(ControlFrame frame) {
        subject.answers().onFrame(this, frame);
    }

    @Override
    protected void onEnded(String reason) {
        subject.answers().onEnded(this);
        subject.asks().onEnded(this, reason);
    }
}
