package io.kvmessenger.transfer.shm;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.path.PathDomain;
import io.kvmessenger.transfer.samehost.OfferedRegions;
import io.kvmessenger.transfer.samehost.RingInboundPaths;
import io.kvmessenger.transfer.socket.EventLoop;
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

/**
 * Maps peers' memory, and lets them map this engine's. Worker only, except where stated.
 *
 * <p>Memory is handed only to an admitted peer on a Unix socket of the same user. It is offered only while all
 * registered regions can be mapped: a peer that cannot reach one of them must use another domain for all.
 */
final class ShmDomain extends PathDomain<RingInboundPaths> {
    private final EventLoop loop;
    private final OfferedRegions offered = new OfferedRegions();

    ShmDomain(EventLoop loop, long connectLimitNs, InboundPort port, Figures figures, String location) {
        super(TransferOptions.SHM, location, Capabilities.GATHERING, port, figures, connectLimitNs);
        this.loop = loop;
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
        return new ShmOutboundPaths(loop.libC(), channel, events, figures(), nowNs + connectLimitNs());
    }

    @Override
    protected RingInboundPaths accept(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        if (!channel.carriesDescriptors()) {
            throw new IllegalArgumentException("memory is handed over on a Unix socket only");
        }
        return new RingInboundPaths(
                loop,
                port(),
                new FileSender(wanted -> port().keyOf(this, wanted), offered),
                from,
                figures(),
                channel,
                false,
                nowNs + connectLimitNs());
    }

    @Override
    public void arm() {
        forEachAdmitted(RingInboundPaths::park);
    }

    @Override
    public void disarm() {
        forEachAdmitted(RingInboundPaths::unpark);
    }

    @Override
    protected void release() {}
}
