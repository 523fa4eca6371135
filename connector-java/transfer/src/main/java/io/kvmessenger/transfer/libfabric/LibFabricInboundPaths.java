package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;
import java.util.function.IntFunction;

/**
 * One admitted peer that writes into this engine's memory through an endpoint of its own: takes the immediates.
 *
 * <p>Worker only. Writes are not checked before they land. The proof that the peer writes no more is the closing of the
 * endpoint, which belongs to this engine.
 */
final class LibFabricInboundPaths implements InboundPaths {
    /** Immediates that one duty cycle may take before other peers are served. */
    private static final int TURN_IMMS = 4096;

    private static final int QUEUE_ENTRIES = 4096;
    /** Writes of a peer that has gone may be in flight: they count as complete after this time without an arrival. */
    private static final long QUIET_NS = 20_000_000L;

    private final InboundPort port;
    /** By region id. */
    private final IntFunction<RemoteMemory> regions;

    private final InboundAdmission from;
    private final Figures figures;
    private final InboundChannel channel;
    private final FabricEndpoint endpoint;
    private final MemorySegment acceptance;
    private final long readyDeadlineNs;
    private long arrivedCount;
    private boolean accepted;
    private boolean proven;
    private boolean ready;
    private boolean stopped;
    private boolean peerGone;
    private boolean closed;
    /** When the peer's last arrival came, or when the peer went. */
    private long lastHeardNs;

    private long nowNs;

    /**
     * Takes over the endpoint, which is already aimed at the peer's.
     *
     * @param landing for immediates without a page
     * @throws IllegalStateException when the provider refuses; the endpoint stays the caller's
     */
    LibFabricInboundPaths(
            InboundPort port,
            IntFunction<RemoteMemory> regions,
            RemoteMemory landing,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            FabricEndpoint endpoint,
            long nowNs,
            long readyDeadlineNs) {
        this.port = port;
        this.regions = regions;
        this.from = from;
        this.figures = figures;
        this.channel = channel;
        this.endpoint = endpoint;
        this.nowNs = nowNs;
        this.readyDeadlineNs = readyDeadlineNs;
        FabricName name = endpoint.name();
        acceptance = landing.encode(name.lengthBytes());
        name.encode(acceptance.asSlice(RemoteMemory.LENGTH_BYTES));
        accepted = channel.report(FabricRecord.ACCEPTED, acceptance);
    }

    static int queueEntries() {
        return QUEUE_ENTRIES;
    }

    /** Takes what has arrived; returns the number of immediates. */
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
        accepted = accepted || channel.report(FabricRecord.ACCEPTED, acceptance);
        int count = take();
        if (count > 0) {
            lastHeardNs = nowNs;
        }
        if (proven && !ready && !peerGone && channel.report(FabricRecord.READY, MemorySegment.NULL)) {
            ready = true;
            figures.increment(TransferCounter.PATHS_OPENED);
            channel.onReady();
        }
        if (peerGone && count == 0 && nowNs - lastHeardNs > QUIET_NS) {
            end("the peer has gone");
        } else if (!ready && nowNs - readyDeadlineNs > 0) {
            end("no immediate of the peer came through in time");
        }
        return count;
    }

    /** Whether arrivals of the peer or a time limit are pending: no event wakes the worker for either. */
    boolean waits() {
        return !ready || peerGone || port.expectsWrites();
    }

    private int take() {
        int count = 0;
        int found = endpoint.read();
        while (found > 0) {
            for (int i = 0; i < found && !closed; i++) {
                if (endpoint.isArrival(i)) {
                    arrivedCount++;
                    onImmediate(endpoint.immediate(i));
                }
            }
            count += found;
            found = count < TURN_IMMS && !closed ? endpoint.read() : 0;
        }
        if (found == FabricEndpoint.FAILED) {
            onFailure(endpoint.describeFailure());
        }
        return count;
    }

    private void onImmediate(int imm) {
        if (imm == Imm.NONE) {
            proven = true;
        } else if (Imm.weight(imm) == 0) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            channel.dismiss(TransferFault.PROTOCOL, "an immediate has no weight");
        } else if (!stopped) {
            port.onArrived(from, imm & ~Imm.WEIGHT_MAX, Imm.weight(imm));
        }
    }

    /** A write of the peer or its connection failed; no provider tells which, nor what has landed of the write. */
    private void onFailure(String detail) {
        if (!peerGone) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            channel.dismiss(TransferFault.DISCONNECTED, "libfabric reports of the peer's path: " + detail);
        }
    }

    private void end(String detail) {
        close();
        channel.onOver(detail);
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long now) {
        if (stopped) {
            return true;
        }
        if (ready && kind == FabricRecord.ARRIVED_WANTED) {
            return channel.report(FabricRecord.ARRIVED, FabricRecord.encodeCount(arrivedCount));
        }
        RemoteMemory wanted = kind == FabricRecord.REGION_WANTED ? RemoteMemory.parse(payload) : null;
        if (wanted == null || !ready) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            channel.dismiss(TransferFault.PROTOCOL, "unexpected control record " + kind);
            return true;
        }
        return channel.report(
                FabricRecord.REGION, regions.apply(wanted.regionId()).encode());
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
        return !endpoint.isOpen();
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        endpoint.close();
        closed = true;
        if (ready) {
            figures.increment(TransferCounter.PATHS_LOST);
        }
    }
}
