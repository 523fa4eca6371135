package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.foreign.FfmLibVerbs;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.LibFabric;
import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOption;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.cuda.CudaTransport;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.libfabric.LibFabricTransport;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.shm.ShmTransport;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.SealingLibC;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.staging.GrantLimits;
import io.kvmessenger.transfer.staging.StagingLimits;
import io.kvmessenger.transfer.tcp.TcpTransport;
import io.kvmessenger.transfer.verbs.VerbsTransport;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.stream.Stream;

/** Opens transfer engines. Any thread. */
public final class TransferEngines {
    private static final List<TransferOption<?>> OPTIONS = Stream.of(
                    TransferOptions.OPTIONS,
                    CudaTransport.OPTIONS,
                    LibFabricTransport.OPTIONS,
                    TcpTransport.OPTIONS,
                    VerbsTransport.OPTIONS)
            .flatMap(List::stream)
            .toList();

    private TransferEngines() {}

    /** The options of the engine itself and of all transports. */
    public static List<TransferOption<?>> options() {
        return OPTIONS;
    }

    /**
     * Opens an engine, which listens when this returns.
     *
     * @throws IllegalArgumentException naming the option that is wrong
     */
    public static TransferEngine open(TransferOptions options) {
        return open(options, new FfmLibC());
    }

    /** The same with another C library, such as one that refuses calls. */
    public static TransferEngine open(TransferOptions options, LibC libC) {
        return open(options, libC, FfmLibFabric::new);
    }

    /** The same with another libfabric too, such as one with a faulty provider. */
    public static TransferEngine open(TransferOptions options, LibC libC, Function<String, LibFabric> libFabric) {
        return open(options, libC, libFabric, driverAccess(options));
    }

    private static DriverAccess driverAccess(TransferOptions options) {
        return new DriverAccess(options.get(CudaTransport.LIBRARY), options.get(CudaTransport.COPY_KERNEL));
    }

    /** The same with other copies to and from devices; they are closed with the engine. */
    public static TransferEngine open(
            TransferOptions options, LibC libC, Function<String, LibFabric> libFabric, DeviceAccess devices) {
        return open(options, libC, libFabric, () -> new FfmLibVerbs(FfmLibVerbs.DEFAULT_NAME), devices);
    }

    /** The same with another libibverbs too, such as one with simulated devices. */
    public static TransferEngine open(
            TransferOptions options,
            LibC libC,
            Function<String, LibFabric> libFabric,
            Supplier<LibVerbs> libVerbs,
            DeviceAccess devices) {
        return open(options, libC, libFabric, libVerbs, devices, System::nanoTime);
    }

    /**
     * The same with another clock too, such as one that a test moves; for an engine that is driven by its caller.
     *
     * @param clock monotonic, in ns
     */
    public static TransferEngine open(
            TransferOptions options,
            LibC libC,
            Function<String, LibFabric> libFabric,
            Supplier<LibVerbs> libVerbs,
            DeviceAccess devices,
            LongSupplier clock) {
        InetAddress listenHost = resolve("listen_host", options.get(TransferOptions.LISTEN_HOST));
        InetAddress advertiseHost = ofDevices(options, listenHost);
        List<InetAddress> dataHosts = dataHosts(options);
        List<EventLoop> loops = loops(options, libC, clock);
        SocketLinks first = new SocketLinks(
                loops.getFirst(),
                options.get(TransferOptions.CONNECT_LIMIT_NS),
                options.get(TransferOptions.IDLE_LIMIT_NS));
        List<WorkerPorts> ports = new ArrayList<>();
        for (EventLoop loop : loops) {
            SocketLinks links = ports.isEmpty() ? first : first.beside(loop);
            ports.add(new WorkerPorts(
                    loop,
                    links,
                    options.get(TransferOptions.TRANSPORTS).stream()
                            .map(name -> transport(
                                    name,
                                    options,
                                    listenHost,
                                    advertiseHost,
                                    dataHosts,
                                    loop,
                                    links,
                                    libFabric,
                                    libVerbs,
                                    devices))
                            .toList()));
        }
        return new HostTransferEngine(
                EngineLimits.of(options),
                new EnginePorts(
                        loops.getFirst().libC(),
                        clock,
                        new SecureRandom(),
                        devices,
                        StagingLimits.STANDARD.granting(GrantLimits.of(options)),
                        LinkSharing.of(options),
                        ports),
                (workers, onBug) -> runner(options.get(TransferOptions.THREADING), workers, clock, onBug));
    }

    /** One event loop per worker; if one thread runs all workers they share one, since it can wait in only one. */
    private static List<EventLoop> loops(TransferOptions options, LibC libC, LongSupplier clock) {
        List<EventLoop> loops = new ArrayList<>();
        try {
            while (loops.size() < options.workerCount()) {
                boolean shared = options.get(TransferOptions.THREADING) == ThreadingMode.CALLER && !loops.isEmpty();
                loops.add(shared ? loops.getFirst() : loop(options, libC, clock));
            }
        } catch (RuntimeException | Error e) {
            loops.forEach(EventLoop::close);
            throw e;
        }
        return loops;
    }

    private static EventLoop loop(TransferOptions options, LibC libC, LongSupplier clock) {
        if (!options.get(TransferOptions.SEAL_TCP)) {
            return new EventLoop(libC, clock);
        }
        SealingLibC sealing = new SealingLibC(libC, new SecureRandom());
        return new EventLoop(sealing, sealing, clock);
    }

    private static WorkerRunner runner(
            ThreadingMode threading, List<Worker> workers, LongSupplier clock, Consumer<Throwable> onBug) {
        int coreCount = Runtime.getRuntime().availableProcessors();
        return switch (threading) {
            case OWN_THREAD -> new OwnThreads(workers, clock, coreCount, onBug);
            case CALLER -> new CallingThread(workers, clock, coreCount, onBug);
        };
    }

    private static Transport transport(
            String name,
            TransferOptions options,
            InetAddress listenHost,
            InetAddress advertiseHost,
            List<InetAddress> dataHosts,
            EventLoop loop,
            SocketLinks links,
            Function<String, LibFabric> libFabric,
            Supplier<LibVerbs> libVerbs,
            DeviceAccess devices) {
        return switch (name) {
            case TransferOptions.CUDA -> new CudaTransport(loop, links, options);
            case TransferOptions.LIBFABRIC ->
                new LibFabricTransport(loop, links, options, listenHost, advertiseHost, libFabric);
            case TransferOptions.SHM -> new ShmTransport(loop, links, options.get(TransferOptions.CONNECT_LIMIT_NS));
            case TransferOptions.TCP -> new TcpTransport(loop, links, options, listenHost, dataHosts);
            case TransferOptions.VERBS ->
                new VerbsTransport(links, options, listenHost, advertiseHost, devices, loop.libC(), libVerbs);
            default -> throw new AssertionError("transport " + name);
        };
    }

    /**
     * The address by which the transports choose among this machine's devices. What peers are told may be a name that
     * only they know, or the address of a relay; then it is the one that is listened on.
     */
    private static InetAddress ofDevices(TransferOptions options, InetAddress listenHost) {
        InetAddress given = options.get(TransferOptions.ADVERTISE_HOST).isEmpty()
                ? listenHost
                : literal(options.get(TransferOptions.ADVERTISE_HOST));
        if (given != null && given.isAnyLocalAddress()) {
            throw new IllegalArgumentException("option advertise_host is " + given.getHostAddress()
                    + ", which no peer can connect to; set it to an address that peers can dial");
        }
        return given == null ? listenHost : given;
    }

    private static InetAddress literal(String host) {
        try {
            return InetAddress.ofLiteral(host);
        } catch (IllegalArgumentException e) {
            return null;
        }
    }

    private static List<InetAddress> dataHosts(TransferOptions options) {
        List<InetAddress> hosts = new ArrayList<>();
        for (String given : options.get(TransferOptions.DATA_HOSTS)) {
            InetAddress host = resolve("data_hosts", given);
            if (host.isAnyLocalAddress()) {
                throw new IllegalArgumentException("option data_hosts names " + given
                        + ", which no peer can connect to; name the addresses of this machine one by one");
            }
            hosts.add(host);
        }
        return List.copyOf(hosts);
    }

    private static InetAddress resolve(String option, String host) {
        try {
            return InetAddress.getByName(host);
        } catch (UnknownHostException e) {
            throw new IllegalArgumentException(
                    "option " + option + " is " + host + ", expected an address of this machine; correct it", e);
        }
    }
}
