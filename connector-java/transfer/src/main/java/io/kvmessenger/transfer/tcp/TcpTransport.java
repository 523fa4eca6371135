package io.kvmessenger.transfer.tcp;

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
                    options.dataPort(),
                    options.reachableDataPort(),
                    port,
                    figures);
            List<InetSocketAddress> dataAddresses =
                    links.listenData(name(), listenHost, dataHosts, options.dataPort(), options.reachableDataPorts());
            return new TcpDomain(
                    loop,
                    new DataNetworks(dataHosts, dataAddresses),
                    options.streamsPerPeer(),
                    options.connectLimitNs(),
                    options.idleLimitNs(),
                    port,
                    figures,
                    location);
        } catch (IllegalStateException e) {
            throw new TransportUnavailableException("tcp cannot listen: " + e.getMessage(), e);
        }
    }
}
