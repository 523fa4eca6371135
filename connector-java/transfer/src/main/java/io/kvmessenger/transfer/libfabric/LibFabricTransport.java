package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.foreign.LibFabric;
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
import java.util.List;
import java.util.function.Function;

/** NICs driven by libfabric, if it is installed. */
public final class LibFabricTransport implements Transport {
    /** The library's path, or a name for the loader; "" for the installed one. */
    public static final TransferOption<String> LIBRARY = TransferOption.any("libfabric_library", "");

    /** The provider's name in {@code fi_info}; "" for libfabric's first provider that meets the requirements. */
    public static final TransferOption<String> PROVIDER = TransferOption.any("libfabric_provider", "");

    public static final List<TransferOption<?>> OPTIONS = List.of(LIBRARY, PROVIDER);

    private final EventLoop loop;
    private final SocketLinks links;
    private final TransferOptions options;
    private final InetAddress listenHost;
    private final InetAddress advertiseHost;
    private final Function<String, LibFabric> loader;

    /** @param loader loads the library of a given name, or throws {@link UnsatisfiedLinkError} with the reason */
    public LibFabricTransport(
            EventLoop loop,
            SocketLinks links,
            TransferOptions options,
            InetAddress listenHost,
            InetAddress advertiseHost,
            Function<String, LibFabric> loader) {
        this.loop = loop;
        this.links = links;
        this.options = options;
        this.listenHost = listenHost;
        this.advertiseHost = advertiseHost;
        this.loader = loader;
    }

    @Override
    public String name() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        if (options.get(TransferOptions.SEAL_TCP)) {
            throw new TransportUnavailableException(
                    "libfabric cannot encrypt what it moves: set tcp_in_clear, or leave libfabric out", null);
        }
        String name = options.get(LIBRARY).isEmpty() ? FfmLibFabric.DEFAULT_NAME : options.get(LIBRARY);
        LibFabric library;
        try {
            library = KeptSignals.during(loop.libC(), () -> loader.apply(name));
        } catch (UnsatisfiedLinkError e) {
            throw new TransportUnavailableException("libfabric cannot be loaded: " + e.getMessage(), e);
        }
        try {
            return open(library, port, figures);
        } catch (IllegalStateException e) {
            throw new TransportUnavailableException("libfabric " + e.getMessage(), e);
        }
    }

    private Domain open(LibFabric library, InboundPort port, Figures figures) {
        FabricInfo info = KeptSignals.during(
                loop.libC(), () -> new FabricSearch(library, advertiseHost).find(options.get(PROVIDER)));
        OpenFabric fabric = new OpenFabric(library, info);
        FabricRegions regions = null;
        int dataPort = options.dataPortAfter(TransferOptions.TCP);
        try {
            regions = new FabricRegions(fabric);
            String location = links.listenInet(
                    name(),
                    listenHost,
                    options.reachableHost(listenHost),
                    dataPort,
                    dataPort == 0 ? 0 : options.reachableDataPort(),
                    port,
                    figures);
            return new LibFabricDomain(
                    fabric,
                    regions,
                    options.get(TransferOptions.LANDING_SLABS),
                    options.get(TransferOptions.CONNECT_LIMIT_NS),
                    port,
                    figures,
                    location);
        } catch (IllegalStateException | IllegalArgumentException e) {
            if (regions != null) {
                regions.close();
            }
            fabric.close();
            throw e;
        }
    }
}
