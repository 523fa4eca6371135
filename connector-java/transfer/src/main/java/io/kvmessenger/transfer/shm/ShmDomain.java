package io.kvmessenger.transfer.shm;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.samehost.InboundRings;
import io.kvmessenger.transfer.samehost.OfferedRegions;
import io.kvmessenger.transfer.samehost.RingInboundPaths;
import io.kvmessenger.transfer.socket.EventLoop;
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
import java.lang.foreign.MemorySegment;

/**
 * Maps peers' memory, and lets them map this engine's. Worker only, except where stated.
 *
 * <p>Memory is handed only to an admitted peer on a Unix socket of the same user. It is offered only while all
 * registered regions can be mapped: a peer that cannot reach one of them must use another domain for all.
 */
final class ShmDomain implements Domain {
    private final EventLoop loop;
    private final long connectLimitNs;
    private final InboundPort port;
    private final Figures figures;
    private final String location;
    private final InboundRings inbound = new InboundRings();
    private final OfferedRegions offered = new OfferedRegions();

    ShmDomain(EventLoop loop, long connectLimitNs, InboundPort port, Figures figures, String location) {
        this.loop = loop;
        this.connectLimitNs = connectLimitNs;
        this.port = port;
        this.figures = figures;
        this.location = location;
    }

    @Override
    public String name() {
        return TransferOptions.SHM;
    }

    @Override
    public String location() {
        return location;
    }

    @Override
    public boolean readsGathered() {
        return true;
    }

    @Override
    public RemoteKey register(Region region) {
        RegionDescriptor descriptor = region.descriptor();
        if (!(region.memory() instanceof Memory.Host host) || !host.isShareable()) {
            return null;
        }
        RemoteKey key = new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), host.memfd());
        offered.add(key);
        return key;
    }

    @Override
    public void deregister(RemoteKey key) {
        offered.remove(key);
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String peerLocation, PathEvents events, long nowNs) {
        if (!channel.carriesDescriptors()) {
            throw new IllegalArgumentException(
                    "the peer's Unix socket cannot be reached, so that it cannot hand over memory");
        }
        return new ShmOutboundPaths(loop.libC(), channel, events, figures, nowNs + connectLimitNs);
    }

    @Override
    public InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        if (!channel.carriesDescriptors()) {
            throw new IllegalArgumentException("memory is handed over on a Unix socket only");
        }
        RingInboundPaths paths = new RingInboundPaths(
                loop,
                port,
                new FileSender(wanted -> port.keyOf(this, wanted), offered),
                from,
                figures,
                channel,
                false,
                nowNs + connectLimitNs);
        inbound.add(paths);
        return paths;
    }

    @Override
    public int poll(long nowNs) {
        return inbound.poll(nowNs);
    }

    @Override
    public void arm() {
        inbound.park();
    }

    @Override
    public void disarm() {
        inbound.unpark();
    }

    @Override
    public void close() {
        inbound.clear();
    }
}
