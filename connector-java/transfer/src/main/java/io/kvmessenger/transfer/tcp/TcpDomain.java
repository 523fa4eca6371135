package io.kvmessenger.transfer.tcp;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferOptions;
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
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** Opens data sockets to peers, and accepts theirs. Worker only, except where stated. */
final class TcpDomain extends PathDomain<TcpInboundPaths> {
    /**
     * A firewall that has lost a connection's state drops its packets, and the kernel retries for a quarter of an hour.
     * A stopped target is given up too; then what it had not taken is sent once more.
     */
    private static final long SILENCE_LIMIT_MAX_NS = 5_000_000_000L;

    private static final long SCRAP_BYTES = 1 << 16;

    private final EventLoop loop;
    private final DataNetworks networks;
    private final int streamsPerPeer;
    private final long idleLimitNs;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment scrap = arena.allocate(SCRAP_BYTES);

    TcpDomain(
            EventLoop loop,
            DataNetworks networks,
            int streamsPerPeer,
            long connectLimitNs,
            long idleLimitNs,
            InboundPort port,
            Figures figures,
            String location) {
        super(TransferOptions.TCP, location, capabilities(connectLimitNs), port, figures, connectLimitNs);
        this.loop = loop;
        this.networks = networks;
        this.streamsPerPeer = streamsPerPeer;
        this.idleLimitNs = idleLimitNs;
    }

    private static Capabilities capabilities(long connectLimitNs) {
        return new Capabilities(Long.MAX_VALUE, true, connectLimitNs, Math.min(connectLimitNs, SILENCE_LIMIT_MAX_NS));
    }

    /** Any host memory, which the worker writes itself; device memory if landed bytes can be copied to it. */
    @Override
    public RemoteKey register(Region region) {
        RegionDescriptor descriptor = region.descriptor();
        boolean reached = !(region.memory() instanceof Memory.Device device) || port().copiesTo(device);
        return reached
                ? new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), Memory.Host.NOT_SHAREABLE)
                : null;
    }

    /** Encodes the number of data sockets that a writer requests. */
    static MemorySegment wish(int pathCount) {
        MemorySegment wish = MemorySegment.ofArray(new byte[Integer.BYTES]);
        wish.set(INT, 0, pathCount);
        return wish;
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String peerLocation, PathEvents events, long nowNs) {
        return new TcpOutboundPaths(
                loop,
                peerLocation,
                channel,
                events,
                figures(),
                networks,
                streamsPerPeer,
                connectLimitNs(),
                idleLimitNs,
                nowNs);
    }

    @Override
    protected TcpInboundPaths accept(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        int count = wish.byteSize() == Integer.BYTES ? wish.get(INT, 0) : 0;
        if (count < 1 || count > TcpTransport.STREAMS_PER_PEER_MAX) {
            throw new IllegalArgumentException("a peer wants " + count + " data paths");
        }
        return new TcpInboundPaths(
                loop, port(), from, figures(), channel, networks, count, scrap, nowNs + connectLimitNs());
    }

    @Override
    public void onWindowClosed(OpenWindow window) {
        forEachAdmitted(paths -> paths.onWindowClosed(window));
    }

    @Override
    protected void release() {
        arena.close();
    }
}
