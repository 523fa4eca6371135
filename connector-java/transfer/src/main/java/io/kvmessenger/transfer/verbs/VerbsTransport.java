package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.transfer.TransferOption;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.agent.IdleThreads;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.TransportUnavailableException;
import java.net.InetAddress;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.function.Supplier;
import java.util.stream.Stream;

/** RDMA devices driven by libibverbs, if there are any. */
public final class VerbsTransport implements Transport {
    /** The RDMA devices to use, one for each network; none for the one that has the advertised address, or the first. */
    public static final TransferOption<List<String>> DEVICES =
            TransferOption.names("verbs_devices", TransferOptions.NETWORKS_MAX, "devices");

    /** Whether NICs access device memory directly, where driver and NIC support it. */
    public static final TransferOption<Boolean> DMA_BUF = TransferOption.any("dma_buf", true);

    public static final List<TransferOption<?>> OPTIONS = Stream.concat(
                    Stream.of(DEVICES, DMA_BUF), VerbsService.OPTIONS.stream())
            .toList();

    /** Far more than the paths that a peer may have. */
    private static final int CONNECTING_MAX = 64;

    private final SocketLinks links;
    private final TransferOptions options;
    private final InetAddress listenHost;
    private final InetAddress advertiseHost;
    private final DeviceAccess devices;
    private final LibC libC;
    private final Supplier<LibVerbs> library;

    /**
     * @param devices exports device memory
     * @param libC closes exported descriptors
     * @param library throws an {@link UnsatisfiedLinkError} when it is not installed
     */
    public VerbsTransport(
            SocketLinks links,
            TransferOptions options,
            InetAddress listenHost,
            InetAddress advertiseHost,
            DeviceAccess devices,
            LibC libC,
            Supplier<LibVerbs> library) {
        this.links = links;
        this.options = options;
        this.listenHost = listenHost;
        this.advertiseHost = advertiseHost;
        this.devices = devices;
        this.libC = libC;
        this.library = library;
    }

    @Override
    public String name() {
        return TransferOptions.VERBS;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        if (options.get(TransferOptions.SEAL_TCP)) {
            throw new TransportUnavailableException(
                    "verbs cannot encrypt what it moves: set tcp_in_clear, or leave verbs out", null);
        }
        try {
            return open(library.get(), port, figures);
        } catch (UnsatisfiedLinkError e) {
            throw new TransportUnavailableException("libibverbs cannot be loaded: " + e.getMessage(), e);
        } catch (IllegalStateException e) {
            throw new TransportUnavailableException("libibverbs: " + e.getMessage(), e);
        }
    }

    private Domain open(LibVerbs loaded, InboundPort port, Figures figures) {
        VerbsSearch search = new VerbsSearch(loaded, advertiseHost);
        // A peer that does not answer occupies one of them for a second.
        ExecutorService connecting = IdleThreads.queueing(CONNECTING_MAX, "kvm-verbs-connect-");
        List<Nic> nics = Nic.openAll(loaded, search.find(options.get(DEVICES)), VerbsService.of(options), connecting);
        List<String> leftOut = options.get(DEVICES).isEmpty() ? List.of() : search.leftOut();
        int dataPort = options.dataPortAfter(TransferOptions.TCP, TransferOptions.LIBFABRIC);
        try {
            String location = links.listenInet(
                    name(),
                    listenHost,
                    options.reachableHost(listenHost),
                    dataPort,
                    dataPort == 0 ? 0 : options.reachableDataPort(),
                    port,
                    figures);
            DeviceRegions regions = new DeviceRegions(nics, devices, libC, options.get(DMA_BUF));
            return new VerbsDomain(
                    nics,
                    regions,
                    connecting,
                    leftOut,
                    options.get(TransferOptions.CONNECT_LIMIT_NS),
                    port,
                    figures,
                    location);
        } catch (IllegalStateException | IllegalArgumentException e) {
            nics.forEach(Nic::close);
            throw e;
        }
    }
}
