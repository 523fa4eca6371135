package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.TransferOption;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.TransportUnavailableException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;

/** TCP sockets, available on every machine. */
public final class TcpTransport implements Transport {
    /** One worker moves the bytes of all streams to a peer, so more streams do not raise the throughput. */
    public static final int STREAMS_PER_PEER_MAX = 16;

    /** Data sockets to each peer. */
    public static final TransferOption<Integer> STREAMS_PER_PEER =
            TransferOption.integer("streams_per_peer", 2, 1, STREAMS_PER_PEER_MAX);

    public static final List<TransferOption<?>> OPTIONS = List.of(STREAMS_PER_PEER);

    private final EventLoop loop;
    private final SocketLinks links;
    private final TransferOptions options;
    private final InetAddress listenHost;
    private final List<InetAddress> dataHosts;

    public TcpTransport(
            EventLoop loop,
            SocketLinks links,
            TransferOptions options,
            InetAddress listenHost,
            List<InetAddress> dataHosts) {
        this.loop = loop;
        this.links = links;
        this.options = options;
        this.listenHost = listenHost;
        this.dataHosts = dataHosts;
    }

    @Override
    public String name() {
        return TransferOptions.TCP;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        try {
            String location = links.listenInet(
                    name(),
                    listenHost,
                    options.reachableHost(listenHost),
                    options.get(TransferOptions.DATA_PORT),
                    options.reachableDataPort(),
                    port,
                    figures);
            List<InetSocketAddress> dataAddresses = links.listenData(
                    name(),
                    listenHost,
                    dataHosts,
                    options.get(TransferOptions.DATA_PORT),
                    options.reachableDataPorts());
            return new TcpDomain(
                    loop,
                    new DataNetworks(dataHosts, dataAddresses),
                    options.get(STREAMS_PER_PEER),
                    options.get(TransferOptions.CONNECT_LIMIT_NS),
                    options.get(TransferOptions.IDLE_LIMIT_NS),
                    port,
                    figures,
                    location);
        } catch (IllegalStateException e) {
            throw new TransportUnavailableException("tcp cannot listen: " + e.getMessage(), e);
        }
    }
}
