package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
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

    /** Immediates that one duty cycle may take before other peers are served. */
    private static final int TURN_IMMS = 4096;

    private static final int DEPTH_MAX = 1024;
    /** Writes of a peer that has gone may be in flight: they count as complete after this time without an arrival. */
    private static final long QUIET_NS = 20_000_000L;
    /** A writer detects a failure by itself within a few seconds, and reports it. */
    private static final long SETTLE_LIMIT_NS = 10_000_000_000L;

    /** Receives the events of the path. */
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
        void reject(TransferFault why, String detail);

        /** The path has closed by itself. */
        void onOver(VerbsReceivePath path, String detail);
    }

    private final InboundPort port;
    private final InboundAdmission from;
    private final PathName name;
    private final Owner owner;
    private final QueuePair pair;
    private final ReceiveQueue receives;
    private final MemorySegment acceptance;
    private final long readyDeadlineNs;
    private boolean accepted;
    private boolean proven;
    private boolean ready;
    private boolean stopped;
    private boolean peerGone;
    private boolean settling;
    private boolean closed;
    private String fault;
    private long settleDeadlineNs;
    /** Number of posts that arrived. */
    private long arrivedCount;
    /** When the peer's last arrival came, or when the peer went. */
    private long lastHeardNs;

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
        this.port = port;
        this.from = from;
        this.name = name;
        this.owner = owner;
        this.nowNs = nowNs;
        this.readyDeadlineNs = readyDeadlineNs;
        int depth = depth(nic.verbs().port());
        pair = new QueuePair(nic.verbs(), false, depth);
        try {
            receives = new ReceiveQueue(pair, depth);
            pair.connect(peer);
        } catch (IllegalArgumentException | IllegalStateException e) {
            pair.close();
            throw e;
        }
        acceptance = pair.name().encode();
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
        if (closed) {
            return 0;
        }
        accepted = accepted || accept();
        int count = closed ? 0 : take();
        if (count > 0) {
            lastHeardNs = nowNs;
        }
        if (closed) {
            return count;
        }
        if (proven && !ready && !peerGone && owner.report(VerbsRecord.READY, name, MemorySegment.NULL)) {
            ready = true;
            owner.onReady();
        }
        watch(count);
        return count;
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
        if (peerGone && count == 0 && nowNs - lastHeardNs > QUIET_NS) {
            end("the peer has gone");
        } else if (!ready && nowNs - readyDeadlineNs > 0) {
            end("no immediate of the peer came through in time");
        } else if (settling && receives.isEmpty()) {
            settle();
        } else if ((settling || fault != null) && !peerGone && nowNs - settleDeadlineNs > 0) {
            owner.reject(TransferFault.DISCONNECTED, pair.device() + " reports of the peer's path: " + fault);
        }
    }

    /** Whether arrivals of the peer or a time limit are pending: no event wakes the worker for either. */
    boolean waits() {
        return !ready || peerGone || settling || fault != null;
    }

    private int take() {
        int count = 0;
        int found = pair.poll();
        while (found > 0) {
            owner.makeVisible();
            for (int i = 0; i < found && !closed; i++) {
                receives.take();
                onCompletion(i);
            }
            if (closed) {
                return count + found;
            }
            if (fault == null && !settling) {
                receives.refill();
            }
            count += found;
            found = count < TURN_IMMS ? pair.poll() : 0;
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
            owner.reject(TransferFault.PROTOCOL, "the peer sent what is no write");
        } else {
            onImmediate(pair.immediate(i));
        }
    }

    private void onImmediate(int imm) {
        if (imm == Imm.NONE) {
            proven = true;
        } else if (Imm.weight(imm) == 0) {
            owner.reject(TransferFault.PROTOCOL, "an immediate has no weight");
        } else {
            arrivedCount++;
            if (!stopped) {
                port.onArrived(from, imm & ~Imm.WEIGHT_MAX, Imm.weight(imm));
            }
        }
    }

    /** The writer detects the failure too, and asks what arrived; if it does not, it uses another route. */
    private void onFailure(String detail) {
        if (fault == null && !settling) {
            fault = detail;
            settleDeadlineNs = nowNs + SETTLE_LIMIT_NS;
        }
    }

    /** The writer has lost the path; returns whether that is possible. */
    boolean onFailed(long now) {
        if (!ready || settling) {
            return false;
        }
        settling = true;
        settleDeadlineNs = now + SETTLE_LIMIT_NS;
        pair.stop();
        return true;
    }

    /** All receive requests have been returned: what arrived is counted, and nothing else can come. */
    private void settle() {
        MemorySegment count = MemorySegment.ofArray(new byte[Long.BYTES]);
        count.set(COUNT, 0, arrivedCount);
        if (owner.report(VerbsRecord.SETTLED, name, count)) {
            end("the peer has lost it");
        }
    }

    private void end(String detail) {
        close();
        owner.onOver(this, detail);
    }

    void stop() {
        stopped = true;
        close();
    }

    /** The peer's process may have ended: its writes may be in flight. */
    void onPeerGone() {
        peerGone = true;
        lastHeardNs = nowNs;
        if (!ready) {
            close();
        }
    }

    boolean isClosed() {
        return closed;
    }

    boolean isReady() {
        return ready;
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
        if (closed) {
            return;
        }
        pair.close();
        receives.close();
        closed = true;
    }
}
