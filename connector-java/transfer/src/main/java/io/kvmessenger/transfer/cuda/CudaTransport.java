package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.NoDeviceException;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.TransportUnavailableException;

/** Device memory shared between processes of one user on one host, and host memory besides. */
public final class CudaTransport implements Transport {
    private final EventLoop loop;
    private final SocketLinks links;
    private final long connectLimitNs;
    private final String library;

    /**
     * @param connectLimitNs how long a peer may take to map what it is sent
     * @param library NVIDIA's driver: its path, or a name for the loader
     */
    public CudaTransport(EventLoop loop, SocketLinks links, long connectLimitNs, String library) {
        this.loop = loop;
        this.links = links;
        this.connectLimitNs = connectLimitNs;
        this.library = library;
    }

    @Override
    public String name() {
        return TransferOptions.CUDA;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        DeviceDriver driver;
        try {
            driver = DeviceDriver.open(library);
        } catch (NoDeviceException e) {
            throw new TransportUnavailableException(e.getMessage(), e);
        }
        try {
            String location = links.listenLocal(name(), port, figures);
            return new CudaDomain(loop, connectLimitNs, port, figures, location, driver);
        } catch (IllegalStateException e) {
            driver.close();
            throw new TransportUnavailableException("cuda cannot listen on a Unix socket: " + e.getMessage(), e);
        }
    }
}
