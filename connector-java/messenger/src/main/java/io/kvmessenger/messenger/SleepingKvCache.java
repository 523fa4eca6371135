package io.kvmessenger.messenger;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.kv.KvDescription;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.session.Misfit;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/**
 * Stands for the KV cache of an engine that sleeps: it has no memory, and refuses each proven peer with one sentence.
 *
 * <p>It is of the same kind as a KV cache, since peers that want one dial it. Owned by the messenger's thread.
 */
public final class SleepingKvCache implements ServedSubject {
    private static final Roles ROLES = new Roles("prefiller", "decoder");
    /** Refused field. */
    private static final String ASLEEP = "asleep";
    /** Nothing is due without input. */
    private static final long REST_NS = 1_000_000_000;

    private final String engineId;

    public SleepingKvCache(String engineId) {
        this.engineId = engineId;
    }

    @Override
    public String kind() {
        return KvDescription.KIND;
    }

    @Override
    public ByteString description() {
        return ByteString.EMPTY;
    }

    @Override
    public Roles roles() {
        return ROLES;
    }

    @Override
    public Session accept(long link, String peerAddress) {
        return new Refused(link, peerAddress);
    }

    @Override
    public String broken(ControlFrame frame) {
        return ""; // no session becomes ready
    }

    @Override
    public List<Duty> duties() {
        return List.of();
    }

    @Override
    public CompletionHandler completions() {
        return new NoCompletions();
    }

    @Override
    public long nextDeadlineNs(long nowNs) {
        return nowNs + REST_NS;
    }

    @Override
    public void shutDown(String reason) {}

    @Override
    public boolean finished() {
        return true;
    }

    @Override
    public void onTransferEnded(String reason) {}

    @Override
    public boolean changed() {
        return false;
    }

    @Override
    public void publishGauges() {}

    /** The link of a peer, which ends in its handshake. */
    private final class Refused extends Session {
        Refused(long link, String peerAddress) {
            super(link, true, peerAddress);
        }

        @Override
        protected Optional<Misfit> misfit(ByteString peerDescription) {
            return Optional.of(new Misfit(
                    ASLEEP,
                    "engine " + engineId + " sleeps, and its KV memory was given back: wake it up, or send the"
                            + " request to another one",
                    MessengerMetric.HANDSHAKES_DROPPED));
        }

        @Override
        protected void onFrame(ControlFrame frame) {}

        @Override
        protected void onEnded(String reason) {}
    }

    /** Without memory and peers, nothing completes. */
    private static final class NoCompletions implements CompletionHandler {
        @Override
        public void onWriteCompleted(long cookie) {}

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {}

        @Override
        public void onWindowFilled(long cookie) {}

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {}

        @Override
        public void onPeerReady(Peer peer) {}

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {}

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {}

        @Override
        public void onWriteRefused(Admission admission, String detail) {}

        @Override
        public void onMessage(Admission from, MemorySegment message) {}
    }
}
