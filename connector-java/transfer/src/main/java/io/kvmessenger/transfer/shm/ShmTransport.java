package io.kvmessenger.transfer.shm;

import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.TransportUnavailableException;

/** Memory that processes of one user on one host share. */
public final class ShmTransport implements Transport {
    private final EventLoop loop;
    private final TransferOptions options;

    public ShmTransport(EventLoop loop, TransferOptions options) {
        this.loop = loop;
        this.options = options;
    }

    @Override
    public String name() {
        return TransferOptions.SHM;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        try {
            return new ShmDomain(loop, options, port, figures);
        } catch (IllegalStateException e) {
            throw new TransportUnavailableException("shm cannot listen on a Unix socket: " + e.getMessage(), e);
        }
    }
}
