package io.kvmessenger.transfer.verbs;

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
import java.util.concurrent.ExecutorService;

/**
 * One port of each RDMA device that this engine uses, with a queue pair for each peer, direction and network. Worker
 * only, except where stated.
 */
final class VerbsDomain extends PathDomain<VerbsInboundPaths> {
    private final List<Nic> nics;
    private final DeviceRegions devices;
    private final ExecutorService connecting;
    private final List<String> leftOut;

    /**
     * Takes over the devices.
     *
     * @param devices device memory that they reach, besides host memory
     * @param connecting runs their connection attempts
     * @param leftOut why other named devices are not among them
     */
    VerbsDomain(
            List<Nic> nics,
            DeviceRegions devices,
            ExecutorService connecting,
            List<String> leftOut,
            long connectLimitNs,
            InboundPort port,
            Figures figures,
            String location) {
        super(
                TransferOptions.VERBS,
                location,
                Capabilities.PLAIN.gathering(writeMaxBytes(nics)),
                port,
                figures,
                connectLimitNs);
        this.nics = nics;
        this.devices = devices;
        this.connecting = connecting;
        this.leftOut = leftOut;
    }

    private static long writeMaxBytes(List<Nic> nics) {
        return nics.stream()
                .mapToLong(nic -> nic.verbs().port().messageMaxBytes())
                .min()
                .orElseThrow();
    }

    @Override
    public List<String> leftOut() {
        return leftOut.stream().map(why -> "verbs goes on without " + why).toList();
    }

    @Override
    public RemoteKey register(Region region) {
        RegionDescriptor descriptor = region.descriptor();
        boolean reached = switch (region.memory()) {
            case Memory.Host host -> add(descriptor.regionId(), host);
            case Memory.Device device -> devices.add(descriptor.regionId(), device);
        };
        return reached
                ? new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), Memory.Host.NOT_SHAREABLE)
                : null;
    }

    /** Host memory is always reachable. */
    private boolean add(int regionId, Memory.Host host) {
        try {
            for (Nic nic : nics) {
                nic.regions().add(regionId, host.bytes());
            }
            return true;
        } catch (IllegalStateException e) {
            nics.forEach(nic -> nic.regions().remove(regionId));
            throw e;
        }
    }

    @Override
    public List<String> notes() {
        return devices.notes();
    }

    @Override
    public boolean canRead(Memory memory) {
        return switch (memory) {
            case Memory.Host host -> true;
            case Memory.Device device -> devices.has(device);
        };
    }

    @Override
    public void deregister(RemoteKey key) {
        nics.forEach(nic -> nic.regions().remove(key.regionId()));
        devices.remove(key.regionId());
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String peerLocation, PathEvents events, long nowNs) {
        return new VerbsOutboundPaths(nics, channel, events, figures(), connectLimitNs(), nowNs);
    }

    @Override
    protected VerbsInboundPaths accept(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        Nic.parseCount(wish);
        return new VerbsInboundPaths(
                nics, port(), this::remoteOf, devices::makeVisible, from, figures(), channel, nowNs, connectLimitNs());
    }

    /** What a peer needs of a region; for an unknown region, that it does not exist. */
    private RemoteMemory remoteOf(Nic nic, int regionId) {
        return port().keyOf(this, regionId) == null
                ? RemoteMemory.unknown(regionId)
                : nic.regions().remoteOf(regionId);
    }

    @Override
    protected void release() {
        // Nothing waits for its results any more; it may still have to close a queue pair that the driver gives back.
        connecting.close();
        nics.forEach(Nic::close);
    }
}
