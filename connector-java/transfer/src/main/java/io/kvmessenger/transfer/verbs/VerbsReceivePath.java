package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.nic.Intake;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/**
 * One queue pair by which an admitted peer writes into this engine's memory: takes the immediates.
 *
 * <p>Worker only. Writes are not checked before they land. The proof that the peer writes no more is the closing of the
 * queue pair, which belongs to this engine. A path that the peer has lost is settled: it is stopped, everything that
 * arrived is counted, and the peer is told how much that was.
 */
final class VerbsReceivePath {
    /** The number of posts that arrived, little-endian. */
    static final ValueLayout.OfLong COUNT = JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    private static final int DEPTH_MAX = 1024;
    /** A writer detects a failure by itself within a few seconds, and reports it. */
    private static final long SETTLE_LIMIT_NS = 10_000_000_000L;

    private enum State {
        /** The driver connects the queue pair, or the peer has not been sent its name. */
        CONNECTING,
        /** The peer's first immediate is awaited. */
        ACCEPTED,
        READY,
        /** The peer has lost the path: what arrived is still to be counted and reported. */
        SETTLING,
        CLOSED
    }

    interface Owner {
        /** Sends a record about the path, if there is room for it now. */
        boolean report(int kind, PathName about, MemorySegment body);

        /**
         * Called before arrivals are counted: makes them visible to kernels.
         *
         * @throws io.kvmessenger.transfer.device.DeviceFault when that cannot be ensured: then nothing is counted
         */
        void makeVisible();

        void onReady();

        /** The peer has broken a rule, or has not reported a fault in time. */
        void dismiss(TransferFault why, String detail);

        /** The path has closed by itself. */
        void onOver(VerbsReceivePath path, String detail);
    }

    private final PathName name;
    private final Owner owner;
    private final QueuePair pair;
    private final Intake intake;
    private final ReceiveQueue receives;
    private final MemorySegment acceptance;
    private final long readyDeadlineNs;
    private State state = State.CONNECTING;
    private boolean wasReady;
    private boolean peerGone;
    private String fault;
    private long settleDeadlineNs;
    private long nowNs;

    /**
     * Begins to connect a queue pair with the peer's.
     *
     * @param readyDeadlineNs when the peer's first immediate must have arrived
     * @throws IllegalArgumentException when the peer is on another kind of network
     * @throws IllegalStateException when the device refuses
     */
    VerbsReceivePath(
            InboundPort port,
            InboundAdmission from,
            PathName name,
            Owner owner,
            Nic nic,
            PairName peer,
            long nowNs,
            long readyDeadlineNs) {
        intake = new Intake(port, from);
        this.name = name;
        this.owner = owner;
        this.nowNs = nowNs;
        this.readyDeadlineNs = readyDeadlineNs;
        int depth = depth(nic.verbs().port());
        pair = new QueuePair(nic.verbs(), false, depth);
        ReceiveQueue posted = null;
        try {
            posted = new ReceiveQueue(pair, depth);
            pair.connect(peer);
        } catch (IllegalArgumentException | IllegalStateException e) {
            release(pair, posted);
            throw e;
        }
        receives = posted;
        acceptance = pair.name().encode();
    }

    private static void release(QueuePair pair, ReceiveQueue posted) {
        try {
            pair.close();
        } finally {
            if (posted != null) {
                posted.close();
            }
        }
    }

    private static int depth(VerbsPort port) {
        return Math.min(DEPTH_MAX, Math.min(port.pairEntries(), port.queueEntries()));
    }

    PathName name() {
        return name;
    }

    /** Takes what has arrived; returns the number of immediates. */
    int poll(long now) {
        nowNs = now;
        if (isClosed()) {
            return 0;
        }
        if (state == State.CONNECTING && accept()) {
            state = State.ACCEPTED;
        }
        int count = isClosed() ? 0 : take();
        if (count > 0) {
            intake.onHeard(nowNs);
        }
        if (isClosed()) {
            return count;
        }
        if (state == State.ACCEPTED && intake.isProven() && !peerGone && report(VerbsRecord.READY)) {
            state = State.READY;
            wasReady = true;
            owner.onReady();
        }
        watch(count);
        return count;
    }

    private boolean report(int kind) {
        return owner.report(kind, name, MemorySegment.NULL);
    }

    /** Tells the writer once the queue pair is connected, or cannot be; returns whether the writer can continue. */
    private boolean accept() {
        try {
            return pair.isConnected() && owner.report(VerbsRecord.ACCEPTED, name, acceptance);
        } catch (IllegalStateException e) {
            byte[] words = e.getMessage().getBytes(StandardCharsets.UTF_8);
            if (owner.report(VerbsRecord.PATH_REFUSED, name, MemorySegment.ofArray(words))) {
                end(e.getMessage());
            }
            return false;
        }
    }

    /** Ends the path by its own events or deadlines. */
    private void watch(int count) {
        boolean settling = state == State.SETTLING;
        if (peerGone && count == 0 && intake.isQuiet(nowNs)) {
            end("the peer has gone");
        } else if (!wasReady && nowNs - readyDeadlineNs > 0) {
            end("no immediate of the peer came through in time");
        } else if (settling && receives.isEmpty()) {
            settle();
        } else if ((settling || fault != null) && !peerGone && nowNs - settleDeadlineNs > 0) {
            owner.dismiss(TransferFault.DISCONNECTED, pair.device() + " reports of the peer's path: " + fault);
        }
    }

    /** Whether arrivals of the peer or a time limit are pending: no event wakes the worker for either. */
    boolean waits() {
        return state != State.READY || peerGone || fault != null;
    }

    private int take() {
        int count = 0;
        int found = pair.poll();
        while (found > 0) {
            owner.makeVisible();
            for (int i = 0; i < found && !isClosed(); i++) {
                receives.take();
                onCompletion(i);
            }
            if (isClosed()) {
                return count + found;
            }
            if (fault == null && state != State.SETTLING) {
                receives.refill();
            }
            count += found;
            found = count < Intake.TURN_IMMS ? pair.poll() : 0;
        }
        if (found < 0) {
            onFailure("its completions cannot be read");
        }
        return count;
    }

    private void onCompletion(int i) {
        if (pair.status(i) != VerbsApi.IBV_WC_SUCCESS) {
            onFailure(pair.describe(i));
        } else if (pair.opcode(i) != VerbsApi.IBV_WC_RECV_RDMA_WITH_IMM) {
            owner.dismiss(TransferFault.PROTOCOL, "the peer sent what is no write");
        } else if (!intake.take(pair.immediate(i))) {
            owner.dismiss(TransferFault.PROTOCOL, "an immediate has no weight");
        }
    }

    /** The writer detects the failure too, and asks what arrived; if it does not, it uses another route. */
    private void onFailure(String detail) {
        if (fault == null && state != State.SETTLING) {
            fault = detail;
            settleDeadlineNs = nowNs + SETTLE_LIMIT_NS;
        }
    }

    /** The writer has lost the path; returns whether that is possible. */
    boolean onFailed(long now) {
        if (state != State.READY) {
            return false;
        }
        state = State.SETTLING;
        settleDeadlineNs = now + SETTLE_LIMIT_NS;
        try {
            pair.stop();
        } catch (IllegalStateException e) {
            owner.dismiss(TransferFault.DISCONNECTED, e.getMessage());
        }
        return true;
    }

    /** All receive requests have been returned: what arrived is counted, and nothing else can come. */
    private void settle() {
        MemorySegment count = MemorySegment.ofArray(new byte[Long.BYTES]);
        count.set(COUNT, 0, intake.writeCount());
        if (owner.report(VerbsRecord.SETTLED, name, count)) {
            end("the peer has lost it");
        }
    }

    private void end(String detail) {
        close();
        owner.onOver(this, detail);
    }

    /** From now on nothing is counted. */
    void stop() {
        intake.stop();
    }

    /** The peer's process may have ended: its writes may be in flight. */
    void onPeerGone() {
        peerGone = true;
        intake.onHeard(nowNs);
        if (!wasReady) {
            close();
        }
    }

    boolean isClosed() {
        return state == State.CLOSED;
    }

    /** Whether the peer may write, or might have. */
    boolean isReady() {
        return wasReady;
    }

    /** Whether nothing of the peer can land or be counted through it any more. */
    boolean isOver() {
        return !pair.isOpen();
    }

    /**
     * Takes nothing more. It is over at once, or as soon as the driver has given the queue pair back.
     *
     * @throws IllegalStateException when the device refuses: then the peer may still write
     */
    void close() {
        if (isClosed()) {
            return;
        }
        pair.close();
        receives.close();
        state = State.CLOSED;
    }
}
