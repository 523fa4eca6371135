package io.kvmessenger.testkit.stream;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.path.PathDomain;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Capabilities;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;

/** Sends to peers, and receives from them, by one stream each. Worker only, except where stated. */
final class StreamDomain extends PathDomain<StreamInboundPaths> {
    private final EventLoop loop;

    StreamDomain(EventLoop loop, String location, InboundPort port, Figures figures, long connectLimitNs) {
        super(StreamTransport.NAME, location, Capabilities.PLAIN, port, figures, connectLimitNs);
        this.loop = loop;
    }

    @Override
    public RemoteKey register(Region region) {
        return region.memory() instanceof Memory.Host
                ? new RemoteKey(
                        region.descriptor().regionId(), region.descriptor().lengthBytes(), Memory.Host.NOT_SHAREABLE)
                : null;
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String peerLocation, PathEvents events, long nowNs) {
        return new StreamOutboundPaths(loop, peerLocation, channel, events, figures(), nowNs + connectLimitNs());
    }

    @Override
    protected StreamInboundPaths accept(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        return new StreamInboundPaths(loop, port(), from, figures(), channel, nowNs + connectLimitNs());
    }

    @Override
    public void onWindowClosed(OpenWindow window) {
        forEachAdmitted(paths -> paths.onWindowClosed(window));
    }

    @Override
    protected void release() {}
}
