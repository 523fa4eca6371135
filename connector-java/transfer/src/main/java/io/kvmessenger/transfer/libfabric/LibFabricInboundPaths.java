package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.nic.Intake;
import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.path.OwedRecord;
import io.kvmessenger.transfer.path.ReaderPaths;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;
import java.util.function.IntFunction;

/**
 * One admitted peer that writes into this engine's memory through an endpoint of its own: takes the immediates.
 *
 * <p>Worker only. Writes are not checked before they land. The proof that the peer writes no more is the closing of the
 * endpoint, which belongs to this engine.
 */
final class LibFabricInboundPaths extends ReaderPaths {
    private static final int QUEUE_ENTRIES = 4096;

    /** By region id. */
    private final IntFunction<RemoteMemory> regions;

    private final FabricEndpoint endpoint;
    private final Intake intake;
    private final OwedRecord acceptance;
    private final OwedRecord readiness;
    /** Immediates, also those that name no window. */
    private long arrivedCount;

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
        super(port, from, figures, channel, readyDeadlineNs);
        this.regions = regions;
        this.endpoint = endpoint;
        this.nowNs = nowNs;
        intake = new Intake(port, from);
        FabricName name = endpoint.name();
        MemorySegment record = landing.encode(name.lengthBytes());
        name.encode(record.asSlice(RemoteMemory.LENGTH_BYTES));
        acceptance = new OwedRecord(() -> channel.report(FabricRecord.ACCEPTED, record));
        readiness = new OwedRecord(() -> channel.report(FabricRecord.READY, MemorySegment.NULL));
        acceptance.send();
    }

    static int queueEntries() {
        return QUEUE_ENTRIES;
    }

    @Override
    protected int advance(long now) {
        nowNs = now;
        acceptance.send();
        int count = take();
        if (count > 0) {
            intake.onHeard(nowNs);
        }
        if (intake.isProven() && !isReady() && !isClosed() && !isPeerGone() && readiness.send()) {
            countOpened();
            becomeReady();
        }
        if (isPeerGone() && count == 0 && intake.isQuiet(nowNs)) {
            end("the peer has gone");
        }
        return count;
    }

    @Override
    protected String overdue() {
        return "no immediate of the peer came through in time";
    }

    /** Whether arrivals of the peer or a time limit are pending: no event wakes the worker for either. */
    @Override
    protected boolean waits() {
        return !isReady() || isPeerGone() || port().expectsWrites();
    }

    private int take() {
        int count = 0;
        int found = endpoint.read();
        while (found > 0) {
            for (int i = 0; i < found && !isClosed(); i++) {
                if (endpoint.isArrival(i)) {
                    arrivedCount++;
                    if (!intake.take(endpoint.immediate(i))) {
                        reject(TransferFault.PROTOCOL, "an immediate has no weight");
                    }
                }
            }
            count += found;
            found = count < Intake.TURN_IMMS && !isClosed() ? endpoint.read() : 0;
        }
        if (found == FabricEndpoint.FAILED) {
            onFailure(endpoint.describeFailure());
        }
        return count;
    }

    /** A write of the peer or its connection failed; no provider tells which, nor what has landed of the write. */
    private void onFailure(String detail) {
        if (!isPeerGone()) {
            reject(TransferFault.DISCONNECTED, "libfabric reports of the peer's path: " + detail);
        }
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long now) {
        if (isClosed()) {
            return true;
        }
        if (isReady() && kind == FabricRecord.ARRIVED_WANTED) {
            return channel().report(FabricRecord.ARRIVED, FabricRecord.encodeCount(arrivedCount));
        }
        RemoteMemory wanted = kind == FabricRecord.REGION_WANTED ? RemoteMemory.parse(payload) : null;
        if (wanted == null || !isReady()) {
            reject(TransferFault.PROTOCOL, "unexpected control record " + kind);
            return true;
        }
        return channel()
                .report(FabricRecord.REGION, regions.apply(wanted.regionId()).encode());
    }

    @Override
    public void stop() {
        intake.stop();
        close();
    }

    @Override
    public void onPeerGone() {
        intake.onHeard(nowNs);
        super.onPeerGone();
    }

    @Override
    protected void endLanding() {
        endpoint.close();
    }
}
