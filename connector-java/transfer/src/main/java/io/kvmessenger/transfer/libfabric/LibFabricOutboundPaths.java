package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.nic.FrameSender;
import io.kvmessenger.transfer.nic.NicRegions;
import io.kvmessenger.transfer.nic.PeerRegions;
import io.kvmessenger.transfer.nic.RegisteredSource;
import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.nic.SlabGrant;
import io.kvmessenger.transfer.path.WriterPaths;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.Objects;

/**
 * One peer that this engine writes to through an endpoint of its own: each run of pages is one write with one
 * immediate.
 *
 * <p>Worker only. The path is ready when an immediate that names no window has been delivered. A write is reported as
 * sent when its source is free; whether it has arrived only the target knows, so the failure of the path ends the peer.
 */
final class LibFabricOutboundPaths extends WriterPaths implements Endpoint {
    /** Target length of one write; a single page may be longer. */
    private static final long WRITE_AIM_BYTES = 1 << 20;

    private static final int DEPTH_MAX = 256;
    private static final long HELLO = -1;
    /** In place of a post: the write of the peer's slab 0, of slab 1 one less, and so on. */
    private static final long FIRST_SLAB = -2;

    /** How long answers may stay short of what was written: longer than an outage that a session survives. */
    private static final long DELIVERY_LIMIT_NS = 15_000_000_000L;

    private final OpenFabric fabric;
    private final FabricRegions own;
    private final RegisteredSource source;
    private final FabricEndpoint endpoint;
    private final WriteContexts contexts;
    private final DeliveryWatch delivery;
    private final long writeMaxBytes;
    private final PeerRegions regions;

    /** The memory for immediates without a page, on this side and the other. */
    private final NicRegions.Registered landing;

    private RemoteMemory remoteLanding;
    /** Null if the peer has granted no slabs. */
    private FrameSender frames;

    private SlabGrant grant;
    private boolean greeted;
    private boolean hasPosted;
    private boolean full;
    private String fault;

    /**
     * Takes over the endpoint.
     *
     * @throws IllegalStateException when the peer has been asked too often, or the provider refuses; the endpoint stays
     *     the caller's
     */
    LibFabricOutboundPaths(
            OpenFabric fabric,
            FabricRegions own,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            FabricEndpoint endpoint,
            long connectLimitNs,
            long nowNs) {
        super(channel, events, figures, nowNs + connectLimitNs);
        this.fabric = fabric;
        this.own = own;
        source = new RegisteredSource(own);
        regions = new PeerRegions(wanted -> channel.report(FabricRecord.REGION_WANTED, wanted));
        this.endpoint = endpoint;
        delivery = new DeliveryWatch(Math.min(DELIVERY_LIMIT_NS, connectLimitNs));
        writeMaxBytes = fabric.info().messageMaxBytes();
        landing = own.of(FabricRegions.LANDING_ID);
        request(new FabricWish(endpoint.name(), true).encode());
        contexts = new WriteContexts(depthOf(fabric));
    }

    /** Number of writes that may be in flight. */
    static int depthOf(OpenFabric fabric) {
        return Math.clamp(fabric.info().depth(), 1, DEPTH_MAX);
    }

    @Override
    protected void onPeerRecord(int kind, MemorySegment payload, long nowNs) {
        switch (kind) {
            case FabricRecord.ACCEPTED -> onAccepted(payload);
            case FabricRecord.READY -> onReady();
            case FabricRecord.REGION -> onRegion(RemoteMemory.parse(payload));
            case FabricRecord.GRANTED -> onGranted(SlabGrant.parse(payload));
            case FabricRecord.FREED -> onFreed(FabricRecord.parseSlabs(payload));
            case FabricRecord.ARRIVED -> onArrived(FabricRecord.parseCount(payload), nowNs);
            default -> throw unexpected(kind);
        }
    }

    private void onAccepted(MemorySegment payload) {
        RemoteMemory memory = RemoteMemory.parse(payload);
        FabricName name = memory == null ? null : FabricName.parse(payload.asSlice(RemoteMemory.LENGTH_BYTES));
        if (name == null || remoteLanding != null) {
            throw new IllegalArgumentException("the peer accepted twice, or without a name");
        }
        endpoint.aimAt(name);
        remoteLanding = memory;
    }

    private void onGranted(SlabGrant granted) {
        if (isOpen() || frames != null) {
            throw new IllegalArgumentException("the peer grants slabs twice, or too late");
        }
        grant = granted;
        frames = new FrameSender(own, source, granted, writeMaxBytes, this::writeFrame);
    }

    private void onFreed(long slabs) {
        if (frames == null || slabs == 0) {
            throw new IllegalArgumentException("the peer gives back slabs that it has not granted");
        }
        frames.onFreed(slabs);
    }

    private void onReady() {
        if (!greeted || isOpen()) {
            throw new IllegalArgumentException("the peer is ready too early");
        }
        open(this);
    }

    private void onRegion(RemoteMemory region) {
        if (!regions.take(region)) {
            lose(TransferFault.WRITE_REFUSED, "the peer has no region " + region.regionId());
        } else if (region.isByFrames() && frames == null) {
            lose(TransferFault.WRITE_REFUSED, "the peer has granted no slabs for its region " + region.regionId());
        }
    }

    private void onArrived(long count, long nowNs) {
        if (!delivery.onAnswer(count, nowNs)) {
            throw new IllegalArgumentException(
                    "the peer says of " + count + " writes that they arrived, which cannot be");
        }
    }

    @Override
    protected int connect(long nowNs) {
        if (remoteLanding != null && !greeted) {
            greet();
        }
        return serve(nowNs);
    }

    @Override
    protected String overdue() {
        return "no answer over libfabric within connect_limit_seconds";
    }

    @Override
    protected int serve(long nowNs) {
        boolean refused = full;
        int work = contexts.areInUse() || refused ? reportSent() : 0;
        if (frames != null && fault == null && contexts.hasFree()) {
            work += frames.sendParts();
            keepFaultOfFrames();
        }
        if (isOpen() && fault == null) {
            watchDelivery(refused && !contexts.areInUse(), nowNs);
        }
        if (fault != null) {
            fail(nowNs);
        }
        return work == 0 && !isClosed() && (contexts.areInUse() || refused || !isOpen()) ? LOOK_SOON : work;
    }

    /** Checks delivery: everything must arrive, and no provider reports when it does not. */
    private void watchDelivery(boolean isRefused, long nowNs) {
        if (delivery.shallAsk(nowNs) && channel().report(FabricRecord.ARRIVED_WANTED, MemorySegment.NULL)) {
            delivery.onAsked();
        }
        long lostCount = delivery.lostCount();
        if (lostCount > 0) {
            fault = lostCount + " writes do not arrive";
        } else if (delivery.isRefusedForGood(isRefused, nowNs)) {
            fault = "no write was taken any more";
        }
    }

    /** Sends an immediate that names no window: its delivery shows that the path works. */
    private void greet() {
        if (contexts.hasFree()) {
            greeted = write(
                    landing.address(), 0, landing.localKey(), Imm.NONE, remoteLanding.base(), remoteLanding, HELLO);
        }
    }

    private int reportSent() {
        full = false;
        int found = endpoint.read();
        for (int i = 0; i < found && !isClosed(); i++) {
            reportSent(endpoint.context(i));
        }
        if (found == FabricEndpoint.FAILED) {
            fault = endpoint.describeFailure();
        }
        return Math.max(0, found);
    }

    private void reportSent(long context) {
        if (!contexts.isUnderWay(context)) {
            fault = "a write completed that was not under way";
            return;
        }
        long postId = contexts.release(context);
        delivery.onCompleted();
        if (postId <= FIRST_SLAB) {
            postId = frames.onWritten((int) (FIRST_SLAB - postId));
        }
        if (postId >= 0) {
            sent(postId);
        }
    }

    /** Most probably the peer has ended, which its control socket reports. */
    private void fail(long nowNs) {
        channel().drain(nowNs);
        lose(
                isOpen() ? TransferFault.PEER_CLOSED : TransferFault.UNREACHABLE,
                "libfabric's " + fabric.info().provider() + ": " + fault);
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (!isOpen() || fault != null || regions.isWaiting() || !contexts.hasFree()) {
            return 0;
        }
        boolean taken = batch.pageCount() == 0 ? postImmediate(batch, postId) : postPages(batch, postId);
        hasPosted |= taken;
        return taken ? batch.unitCount() : 0;
    }

    private boolean postImmediate(WriteBatch batch, long postId) {
        int imm = Imm.withWeight(batch.window(), (int) batch.weight());
        return write(landing.address(), 0, landing.localKey(), imm, remoteLanding.base(), remoteLanding, postId);
    }

    private boolean postPages(WriteBatch batch, long postId) {
        RemoteMemory region = regions.find(batch.regionId());
        if (region == null) {
            return false;
        }
        if (region.isByFrames()) {
            boolean taken = frames.post(batch, postId) > 0;
            keepFaultOfFrames();
            return taken;
        }
        if (!findSource(batch)) {
            return false;
        }
        batch.limit(batch.runLength(0), Math.min(WRITE_AIM_BYTES, writeMaxBytes), Imm.WEIGHT_MAX);
        long lengthBytes = batch.payloadBytes();
        fault = PeerRegions.refusal(batch, 0, lengthBytes, region, writeMaxBytes);
        if (fault != null) {
            return false;
        }
        long offset = Objects.checkFromIndexSize(
                batch.sourceOffsetBytes(0), lengthBytes, batch.source().byteSize());
        int imm = Imm.withWeight(batch.window(), (int) batch.weight());
        return write(
                batch.source().address() + offset,
                lengthBytes,
                source.localKey(),
                imm,
                region.base() + batch.targetOffsetBytes(0),
                region,
                postId);
    }

    /** What a write of a frame has met with comes first. */
    private void keepFaultOfFrames() {
        fault = fault == null ? frames.fault() : fault;
    }

    private boolean writeFrame(long address, long lengthBytes, long localKey, int imm, long to, int slab) {
        RemoteMemory slabs = grant.memory();
        return contexts.hasFree()
                && write(address, lengthBytes, localKey, imm, slabs.base() + to, slabs, FIRST_SLAB - slab);
    }

    @Override
    public int gatheredPagesMax() {
        return frames == null ? Endpoint.super.gatheredPagesMax() : FrameSender.pagesMax();
    }

    @Override
    public long gatheredBytesMax() {
        return frames == null ? Endpoint.super.gatheredBytesMax() : frames.pagesBytes();
    }

    private boolean findSource(WriteBatch batch) {
        fault = source.find(batch);
        return fault == null;
    }

    /** Returns whether the provider has accepted it. */
    private boolean write(
            long source, long lengthBytes, long descriptor, int imm, long to, RemoteMemory at, long postId) {
        long context = contexts.next();
        long result = endpoint.write(source, lengthBytes, descriptor, imm, to, at.key(), context);
        if (result == 0) {
            contexts.take(postId);
            delivery.onWritten();
            return true;
        }
        full = true;
        if (result != -Errno.EAGAIN && result != -Errno.ENOMEM) {
            fault = fabric.describe(result);
        }
        return false;
    }

    /** It is unknown which of the writes reported as sent have arrived. */
    @Override
    public boolean mayOweDelivery() {
        return hasPosted;
    }

    @Override
    protected void release() {
        endpoint.close();
        contexts.close();
        source.close();
        if (frames != null) {
            frames.close();
        }
    }
}
