package io.kvmessenger.testkit.stream;

import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.TransportUnavailableException;

/** Bytes over one Unix stream socket for each peer. */
public final class StreamTransport implements Transport {
    public static final String NAME = "stream";

    private final EventLoop loop;
    private final SocketLinks links;
    private final long connectLimitNs;

    public StreamTransport(EventLoop loop, SocketLinks links, long connectLimitNs) {
        this.loop = loop;
        this.links = links;
        this.connectLimitNs = connectLimitNs;
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        try {
            String location = links.listenLocal(NAME, port, figures);
            return new StreamDomain(loop, location, port, figures, connectLimitNs);
        } catch (IllegalStateException e) {
            throw new TransportUnavailableException("stream cannot listen on a Unix socket: " + e.getMessage(), e);
        }
    }
}
