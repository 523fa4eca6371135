package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.TransferOption;
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
import java.util.List;

/** Device memory shared between processes of one user on one host, and host memory besides. */
public final class CudaTransport implements Transport {
    /** NVIDIA's driver, also where another transport is to reach device memory: its path, or a name for the loader. */
    public static final TransferOption<String> LIBRARY = TransferOption.any("cuda_library", "libcuda.so.1");

    /** Whether devices copy many small runs by a kernel, also for other transports; the copy engine copies all others. */
    public static final TransferOption<Boolean> COPY_KERNEL = TransferOption.any("gpu_copy_kernel", false);

    public static final List<TransferOption<?>> OPTIONS = List.of(LIBRARY, COPY_KERNEL);

    private final EventLoop loop;
    private final SocketLinks links;
    private final TransferOptions options;

    public CudaTransport(EventLoop loop, SocketLinks links, TransferOptions options) {
        this.loop = loop;
        this.links = links;
        this.options = options;
    }

    @Override
    public String name() {
        return TransferOptions.CUDA;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        DeviceDriver driver;
        try {
            driver = DeviceDriver.open(options.get(LIBRARY), options.get(COPY_KERNEL));
        } catch (NoDeviceException e) {
            throw new TransportUnavailableException(e.getMessage(), e);
        }
        try {
            String location = links.listenLocal(name(), port, figures);
            return new CudaDomain(loop, options.get(TransferOptions.CONNECT_LIMIT_NS), port, figures, location, driver);
        } catch (IllegalStateException e) {
            driver.close();
            throw new TransportUnavailableException("cuda cannot listen on a Unix socket: " + e.getMessage(), e);
        }
    }
}
