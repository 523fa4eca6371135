package io.kvmessenger.transfer.shm;

import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.TransportUnavailableException;

/** Shared memory between processes of one user on one host. */
public final class ShmTransport implements Transport {
    private final EventLoop loop;
    private final SocketLinks links;
    private final long connectLimitNs;

    /** @param connectLimitNs how long a peer may take to map what it is sent */
    public ShmTransport(EventLoop loop, SocketLinks links, long connectLimitNs) {
        this.loop = loop;
        this.links = links;
        this.connectLimitNs = connectLimitNs;
    }

    @Override
    public String name() {
        return TransferOptions.SHM;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        try {
            String location = links.listenLocal(name(), port, figures);
            return new ShmDomain(loop, connectLimitNs, port, figures, location);
        } catch (IllegalStateException e) {
            throw new TransportUnavailableException("shm cannot listen on a Unix socket: " + e.getMessage(), e);
        }
    }
}
