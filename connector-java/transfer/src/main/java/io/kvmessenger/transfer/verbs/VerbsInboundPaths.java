package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.RemoteMemory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.function.IntFunction;

/**
 * One admitted peer that writes into this engine's memory through a queue pair of its own: takes the immediates.
 *
 * <p>Worker only. Nothing looks at a write before it lands. What proves that the peer writes no more is the end of the queue pair,
 * which is this engine's to close. A path that the peer has lost is settled: it is stopped, all that came through is counted, and
 * the peer is told how much that was.
 */
final class VerbsInboundPaths implements InboundPaths {
    /** Little-endian: how many posts came through. */
    static final ValueLayout.OfLong COUNT = JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    /** What one duty cycle may take before other peers get theirs. */
    private static final int TURN_IMMS = 4096;

    private static final int DEPTH_MAX = 1024;
    /** What a peer that has gone had sent may still be on its way: it has arrived when nothing came for so long. */
    private static final long QUIET_NS = 20_000_000L;
    /** A writer hears of a failure by itself within a few seconds, and says so. */
    private static final long SETTLE_LIMIT_NS = 10_000_000_000L;

    private final InboundPort port;
    /** By the region's id. */
    private final IntFunction<RemoteMemory> regions;

    private final InboundAdmission from;
    private final Figures figures;
    private final InboundChannel channel;
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
    /** Posts that came through. */
    private long arrivedCount;
    /** When something of the peer's came last, or the peer went. */
    private long lastHeardNs;

    private long nowNs;

    /**
     * Connects the queue pair with the peer's, and takes it over.
     *
     * @throws IllegalArgumentException where the peer is on another kind of network
     * @throws IllegalStateException when the device refuses; the queue pair stays the caller's
     */
    VerbsInboundPaths(
            InboundPort port,
            IntFunction<RemoteMemory> regions,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            QueuePair pair,
            PairName peer,
            int depth,
            long nowNs,
            long readyDeadlineNs) {
        this.port = port;
        this.regions = regions;
        this.from = from;
        this.figures = figures;
        this.channel = channel;
        this.pair = pair;
        this.nowNs = nowNs;
        this.readyDeadlineNs = readyDeadlineNs;
        pair.connect(peer);
        receives = new ReceiveQueue(pair, depth);
        acceptance = pair.name().encode();
        accepted = channel.tell(VerbsRecord.ACCEPTED, acceptance);
    }

    static int depth(VerbsPort port) {
        return Math.min(DEPTH_MAX, Math.min(port.pairEntries(), port.queueEntries()));
    }

    /** Takes what has arrived; returns how many immediates. */
    int poll(long now) {
        nowNs = now;
        if (closed) {
            return 0;
        }
        try {
            return advance();
        } catch (RuntimeException | Error error) {
            channel.onError(error);
            return 1;
        }
    }

    private int advance() {
        accepted = accepted || channel.tell(VerbsRecord.ACCEPTED, acceptance);
        int count = take();
        if (count > 0) {
            lastHeardNs = nowNs;
        }
        if (closed) {
            return count;
        }
        if (proven && !ready && !peerGone && channel.tell(VerbsRecord.READY, MemorySegment.NULL)) {
            ready = true;
            figures.increment(TransferCounter.PATHS_OPENED);
            channel.onReady();
        }
        watch(count);
        return count;
    }

    /** What ends by itself, or by time. */
    private void watch(int count) {
        if (peerGone && count == 0 && nowNs - lastHeardNs > QUIET_NS) {
            end("the peer has gone");
        } else if (!ready && nowNs - readyDeadlineNs > 0) {
            end("no immediate of the peer came through in time");
        } else if (settling && receives.isEmpty()) {
            settle();
        } else if ((settling || fault != null) && !peerGone && nowNs - settleDeadlineNs > 0) {
            reject(TransferFault.DISCONNECTED, pair.device() + " reports of the peer's path: " + fault);
        }
    }

    /** Whether something of the peer's may come that is waited for, or a time runs: nothing wakes the worker for either. */
    boolean waits() {
        return !ready || peerGone || settling || fault != null || port.expectsWrites();
    }

    private int take() {
        int count = 0;
        int found = pair.poll();
        while (found > 0) {
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
            reject(TransferFault.PROTOCOL, "the peer sent what is no write");
        } else {
            onImmediate(pair.immediate(i));
        }
    }

    private void onImmediate(int imm) {
        if (imm == Imm.NONE) {
            proven = true;
        } else if (Imm.weight(imm) == 0) {
            reject(TransferFault.PROTOCOL, "an immediate has no weight");
        } else {
            arrivedCount++;
            if (!stopped) {
                port.onArrived(from, imm & ~Imm.WEIGHT_MAX, Imm.weight(imm));
            }
        }
    }

    /** The writer hears of it too, and asks what came through; if it does not, it has gone another way. */
    private void onFailure(String detail) {
        if (fault == null && !settling) {
            fault = detail;
            settleDeadlineNs = nowNs + SETTLE_LIMIT_NS;
        }
    }

    private void reject(TransferFault why, String detail) {
        figures.increment(TransferCounter.PATHS_REJECTED);
        channel.dismiss(why, detail);
    }

    /** All that was posted to receive has come back: what came through is counted, and nothing else can come. */
    private void settle() {
        MemorySegment count = MemorySegment.ofArray(new byte[Long.BYTES]);
        count.set(COUNT, 0, arrivedCount);
        if (channel.tell(VerbsRecord.SETTLED, count)) {
            close();
        }
    }

    private void end(String detail) {
        close();
        channel.onOver(detail);
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long now) {
        if (stopped || closed) {
            return true;
        }
        RemoteMemory wanted = kind == VerbsRecord.REGION_WANTED ? RemoteMemory.parse(payload) : null;
        if (ready && wanted != null) {
            return channel.tell(
                    VerbsRecord.REGION, regions.apply(wanted.regionId()).encode());
        }
        if (ready && kind == VerbsRecord.FAILED && !settling) {
            settling = true;
            settleDeadlineNs = now + SETTLE_LIMIT_NS;
            pair.stop();
        } else {
            reject(TransferFault.PROTOCOL, "unexpected control record " + kind);
        }
        return true;
    }

    @Override
    public void stop() {
        stopped = true;
        close();
    }

    @Override
    public void onPeerGone() {
        peerGone = true;
        lastHeardNs = nowNs;
        if (!ready) {
            close();
        }
    }

    @Override
    public boolean isOver() {
        return !pair.isOpen();
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        pair.close();
        receives.close();
        closed = true;
        if (ready) {
            figures.increment(TransferCounter.PATHS_LOST);
        }
    }
}
