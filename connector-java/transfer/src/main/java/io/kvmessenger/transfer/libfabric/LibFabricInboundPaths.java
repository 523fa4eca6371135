package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.nic.FrameIntake;
import io.kvmessenger.transfer.nic.Intake;
import io.kvmessenger.transfer.nic.NicRegions;
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
 * <p>Worker only. Writes to host memory are not checked before they land; those to devices come as frames, and are. The
 * proof that the peer writes no more is the closing of the
 * endpoint, which belongs to this engine.
 */
final class LibFabricInboundPaths extends ReaderPaths implements FrameIntake.Events {
    private static final int QUEUE_ENTRIES = 4096;

    /** By region id. */
    private final IntFunction<RemoteMemory> regions;

    private final FabricRegions registered;

    private final FabricEndpoint endpoint;
    private final PartedEndpoints parted;
    private final Intake intake;
    /** Null if no region is a device's. */
    private final FrameIntake frames;

    /** The slabs of the frames, registered for this peer alone; null without frames. */
    private final NicRegions.Registered slabs;

    private final OwedRecord acceptance;
    /** Null without frames. */
    private final OwedRecord grant;

    private final OwedRecord readiness;
    private final MemorySegment freed = MemorySegment.ofArray(new byte[Long.BYTES]);
    /** Immediates, also those that name no window. */
    private long arrivedCount;

    private long nowNs;

    /**
     * Takes over the endpoint, which is already aimed at the peer's.
     *
     * @param registered has the memory for immediates without a page
     * @param parted takes the endpoint if the peer is never ready
     * @param forDevices whether the peer needs slabs for its frames
     * @throws IllegalStateException when the provider refuses, or no slabs are left; the endpoint stays the caller's
     */
    LibFabricInboundPaths(
            InboundPort port,
            IntFunction<RemoteMemory> regions,
            FabricRegions registered,
            boolean forDevices,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            FabricEndpoint endpoint,
            PartedEndpoints parted,
            long nowNs,
            long readyDeadlineNs) {
        super(port, from, figures, channel, readyDeadlineNs);
        this.regions = regions;
        this.registered = registered;
        this.endpoint = endpoint;
        this.parted = parted;
        this.nowNs = nowNs;
        intake = new Intake(port, from);
        FabricName name = endpoint.name();
        MemorySegment record = registered.of(FabricRegions.LANDING_ID).remote().encode(name.lengthBytes());
        name.encode(record.asSlice(RemoteMemory.LENGTH_BYTES));
        acceptance = new OwedRecord(() -> channel.report(FabricRecord.ACCEPTED, record));
        frames = forDevices ? openFrames() : null;
        slabs = frames == null ? null : registerSlabs();
        grant = frames == null ? null : owedGrant();
        readiness = new OwedRecord(() -> channel.report(FabricRecord.READY, MemorySegment.NULL));
        acceptance.send();
    }

    private FrameIntake openFrames() {
        FrameIntake opened = FrameIntake.open(port(), from(), figures(), this);
        if (opened == null) {
            throw new IllegalStateException("landing_peers peers have all slabs for frames to a device's memory: raise"
                    + " it, or let the peer take the next transport");
        }
        return opened;
    }

    private NicRegions.Registered registerSlabs() {
        try {
            return registered.addOwn(frames.memory(), true);
        } catch (IllegalStateException e) {
            frames.close();
            throw e;
        }
    }

    private OwedRecord owedGrant() {
        MemorySegment record = frames.grant(slabs.remote()).encode();
        return new OwedRecord(() -> channel().report(FabricRecord.GRANTED, record));
    }

    static int queueEntries() {
        return QUEUE_ENTRIES;
    }

    @Override
    protected int advance(long now) {
        nowNs = now;
        boolean mayWrite = acceptance.send() && (grant == null || grant.send());
        int count = take();
        if (count > 0) {
            intake.onHeard(nowNs);
        }
        if (frames != null && !isClosed()) {
            frames.copyLanded();
            reportFreed();
        }
        if (intake.isProven() && mayWrite && !isReady() && !isClosed() && !isPeerGone() && readiness.send()) {
            countOpened();
            becomeReady();
        }
        if (isPeerGone() && count == 0 && intake.isQuiet(nowNs)) {
            end("the peer has gone");
        }
        return count;
    }

    /** Lets the peer use slabs again, if there is room for the record now. */
    private void reportFreed() {
        if (frames.freed() != 0 && !isClosed() && !isPeerGone()) {
            FabricRecord.encodeSlabs(freed, frames.freed());
            if (channel().report(FabricRecord.FREED, freed)) {
                frames.onFreedReported();
            }
        }
    }

    @Override
    protected String overdue() {
        return "no immediate of the peer came through in time";
    }

    /** Whether arrivals of the peer or a time limit are pending: no event wakes the worker for either. */
    @Override
    protected boolean waits() {
        return !isReady()
                || isPeerGone()
                || port().expectsWrites()
                || (frames != null && (!frames.isSettled() || frames.freed() != 0));
    }

    private int take() {
        int count = 0;
        int found = endpoint.read();
        while (found > 0) {
            for (int i = 0; i < found && !isClosed(); i++) {
                if (endpoint.isArrival(i)) {
                    arrivedCount++;
                    take(endpoint.immediate(i));
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

    private void take(int imm) {
        if (frames != null && isReady() && FrameIntake.isFrame(imm)) {
            frames.take(imm);
        } else if (!intake.take(imm)) {
            reject(TransferFault.PROTOCOL, "an immediate has no weight");
        }
    }

    @Override
    public void onRefused(String detail) {
        port().onRefused(from(), detail);
        channel().dismiss(TransferFault.WRITE_REFUSED, detail);
    }

    @Override
    public void onGarbage(String detail) {
        reject(TransferFault.PROTOCOL, detail);
    }

    @Override
    public void onCopyFailed(String detail) {
        channel().dismiss(TransferFault.COPY_FAILED, detail);
    }

    @Override
    public void onError(Throwable error) {
        channel().onError(error);
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
        if (isReady()) {
            endpoint.close();
        } else {
            parted.add(endpoint, nowNs); // a connection to it may be pending, and the peer knows no region's key
        }
    }

    @Override
    public boolean isCopying() {
        return frames != null && !frames.isSettled();
    }

    @Override
    protected void release() {
        if (frames != null) {
            registered.remove(slabs.remote().regionId());
            frames.close();
        }
    }
}
