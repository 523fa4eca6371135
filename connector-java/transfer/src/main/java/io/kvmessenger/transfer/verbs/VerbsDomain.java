package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.RemoteKey;
import io.kvmessenger.transfer.spi.RemoteMemory;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** One port of an RDMA device: a queue pair for each peer and direction. Worker only, except where said. */
final class VerbsDomain implements Domain {
    private final OpenVerbs verbs;
    private final VerbsRegions regions;
    private final long connectLimitNs;
    private final InboundPort port;
    private final Figures figures;
    private final String location;
    private final List<VerbsInboundPaths> inbound = new ArrayList<>();

    /** Takes the port over. */
    VerbsDomain(OpenVerbs verbs, long connectLimitNs, InboundPort port, Figures figures, String location) {
        this.verbs = verbs;
        this.connectLimitNs = connectLimitNs;
        this.port = port;
        this.figures = figures;
        this.location = location;
        regions = new VerbsRegions(verbs);
    }

    @Override
    public String name() {
        return TransferOptions.VERBS;
    }

    @Override
    public String location() {
        return location;
    }

    @Override
    public RemoteKey register(Region region) {
        RegionDescriptor descriptor = region.descriptor();
        if (!(region.memory() instanceof Memory.Host host)) {
            return null;
        }
        regions.add(descriptor.regionId(), host.bytes());
        return new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), Memory.Host.NOT_SHAREABLE);
    }

    @Override
    public void deregister(RemoteKey key) {
        regions.remove(key.regionId());
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String peerLocation, PathEvents events, long nowNs) {
        QueuePair pair = new QueuePair(verbs, true, VerbsOutboundPaths.depth(verbs.port()));
        try {
            return new VerbsOutboundPaths(
                    regions, channel, events, figures, pair, verbs.port(), nowNs + connectLimitNs);
        } catch (IllegalStateException e) {
            pair.close();
            throw e;
        }
    }

    @Override
    public InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        PairName writer = PairName.parse(wish);
        if (writer == null) {
            throw new IllegalArgumentException("a peer names no queue pair");
        }
        int depth = VerbsInboundPaths.depth(verbs.port());
        QueuePair pair = new QueuePair(verbs, false, depth);
        try {
            VerbsInboundPaths paths = new VerbsInboundPaths(
                    port, this::remoteOf, from, figures, channel, pair, writer, depth, nowNs, nowNs + connectLimitNs);
            inbound.add(paths);
            return paths;
        } catch (IllegalArgumentException | IllegalStateException e) {
            pair.close();
            throw e;
        }
    }

    /** What a peer needs of a region; of none that this engine has, that it has none. */
    private RemoteMemory remoteOf(int regionId) {
        VerbsRegions.Registered registered = port.keyOf(this, regionId) == null ? null : regions.of(regionId);
        return registered == null ? RemoteMemory.unknown(regionId) : registered.remote();
    }

    @Override
    public int poll(long nowNs) {
        int work = 0;
        boolean lookSoon = false;
        for (int i = inbound.size() - 1; i >= 0; i--) {
            VerbsInboundPaths paths = inbound.get(i);
            work += paths.poll(nowNs);
            if (paths.isOver()) {
                inbound.remove(paths);
            } else {
                lookSoon |= paths.waits();
            }
        }
        return work == 0 && lookSoon ? LOOK_SOON : work;
    }

    @Override
    public void close() {
        inbound.clear();
        regions.close();
        verbs.close();
    }
}
