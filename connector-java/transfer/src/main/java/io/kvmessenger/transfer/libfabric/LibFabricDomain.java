package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.path.PathDomain;
import io.kvmessenger.transfer.spi.Capabilities;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * One NIC by libfabric, with an endpoint for each peer and direction. Worker only, except where stated.
 *
 * <p>It assumes no order of writes, and concludes nothing from their local completion.
 */
final class LibFabricDomain extends PathDomain<LibFabricInboundPaths> {
    private final OpenFabric fabric;
    private final FabricRegions regions;
    private final FabricDevices devices;
    private final PartedEndpoints parted = new PartedEndpoints();

    /** Takes over the fabric and the regions. */
    LibFabricDomain(
            OpenFabric fabric,
            FabricRegions regions,
            int slabsPerPeer,
            long connectLimitNs,
            InboundPort port,
            Figures figures,
            String location) {
        super(
                TransferOptions.LIBFABRIC,
                location,
                Capabilities.PLAIN.gathering(fabric.info().messageMaxBytes()),
                port,
                figures,
                connectLimitNs);
        this.fabric = fabric;
        this.regions = regions;
        devices = new FabricDevices(port, fabric.info().provider(), slabsPerPeer);
    }

    @Override
    public List<String> notes() {
        return devices.notes();
    }

    @Override
    public RemoteKey register(Region region) {
        RegionDescriptor descriptor = region.descriptor();
        switch (region.memory()) {
            case Memory.Host host -> regions.add(descriptor.regionId(), host.bytes());
            case Memory.Device device -> {
                if (!devices.add(region, device)) {
                    return null;
                }
            }
        }
        return new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), Memory.Host.NOT_SHAREABLE);
    }

    @Override
    public void deregister(RemoteKey key) {
        devices.remove(key.regionId());
        regions.remove(key.regionId());
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String peerLocation, PathEvents events, long nowNs) {
        FabricEndpoint endpoint = new FabricEndpoint(fabric, 2 * LibFabricOutboundPaths.depthOf(fabric));
        try {
            return new LibFabricOutboundPaths(
                    fabric, regions, channel, events, figures(), endpoint, connectLimitNs(), nowNs);
        } catch (IllegalStateException e) {
            endpoint.close();
            throw e;
        }
    }

    @Override
    protected LibFabricInboundPaths accept(
            InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        FabricWish wanted = FabricWish.parse(wish);
        if (wanted == null) {
            throw new IllegalArgumentException("a peer names no endpoint of libfabric's");
        }
        if (!devices.isEmpty() && !wanted.writesFrames()) {
            throw new IllegalArgumentException("the peer's release does not write to devices over libfabric");
        }
        FabricEndpoint endpoint = new FabricEndpoint(fabric, LibFabricInboundPaths.queueEntries());
        try {
            requireSameKind(endpoint.name(), wanted.name());
            endpoint.aimAt(wanted.name());
            return new LibFabricInboundPaths(
                    port(),
                    this::remoteOf,
                    regions,
                    !devices.isEmpty(),
                    from,
                    figures(),
                    channel,
                    endpoint,
                    parted,
                    nowNs,
                    nowNs + connectLimitNs());
        } catch (IllegalArgumentException | IllegalStateException e) {
            endpoint.close();
            throw e;
        }
    }

    private void requireSameKind(FabricName own, FabricName writer) {
        if (!own.isOfKind(writer)) {
            throw new IllegalArgumentException("the peer's libfabric speaks protocol " + writer.protocol()
                    + " with addresses of format " + writer.addressFormat() + ", this engine's "
                    + fabric.info().provider() + " " + own.protocol() + " and " + own.addressFormat()
                    + ": set libfabric_provider alike on both sides");
        }
    }

    /** The record by which peers write to a region; {@link RemoteMemory#unknown} for an unknown one. */
    private RemoteMemory remoteOf(int regionId) {
        if (port().keyOf(this, regionId) == null) {
            return RemoteMemory.unknown(regionId);
        }
        long lengthBytes = devices.lengthBytes(regionId);
        return lengthBytes < 0 ? regions.remoteOf(regionId) : RemoteMemory.byFrames(regionId, lengthBytes);
    }

    @Override
    protected boolean clearUp(long nowNs) {
        return parted.poll(nowNs);
    }

    @Override
    protected void release() {
        parted.close();
        regions.close();
        fabric.close();
    }
}
