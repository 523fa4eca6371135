package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Driver;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.libfabric.LibFabricTransport;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.shm.ShmTransport;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.SealingLibC;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/** Opens transfer engines. Any thread. */
public final class TransferEngines {
    private TransferEngines() {}

    /**
     * Opens an engine that listens when this returns.
     *
     * @throws IllegalArgumentException naming the option that is wrong
     */
    public static TransferEngine open(TransferOptions options) {
        return open(options, new FfmLibC());
    }

    /** The same over another C library, as one that refuses calls. */
    public static TransferEngine open(TransferOptions options, LibC libC) {
        InetAddress listenHost = resolve("listen_host", options.listenHost());
        InetAddress advertiseHost =
                options.advertiseHost().isEmpty() ? listenHost : resolve("advertise_host", options.advertiseHost());
        if (advertiseHost.isAnyLocalAddress()) {
            throw new IllegalArgumentException("option advertise_host is " + advertiseHost.getHostAddress()
                    + ", which no peer can connect to; set it to an address of this machine");
        }
        LongSupplier clock = System::nanoTime;
        List<EventLoop> loops = loops(options, libC, clock);
        SocketLinks first = new SocketLinks(loops.getFirst(), options.connectLimitNs());
        List<WorkerPorts> workers = new ArrayList<>();
        for (EventLoop loop : loops) {
            SocketLinks links = workers.isEmpty() ? first : first.beside(loop);
            workers.add(new WorkerPorts(
                    loop,
                    links,
                    options.transports().stream()
                            .map(name -> transport(name, options, listenHost, advertiseHost, loop, links))
                            .toList()));
        }
        return new HostTransferEngine(
                EngineLimits.of(options),
                new EnginePorts(loops.getFirst().libC(), clock, new SecureRandom(), workers),
                (turned, onBug) -> drive(options.driver(), turned, clock, onBug));
    }

    /** One for each worker; where one thread turns all of them, the same one, since it can wait by one only. */
    private static List<EventLoop> loops(TransferOptions options, LibC libC, LongSupplier clock) {
        List<EventLoop> loops = new ArrayList<>();
        try {
            while (loops.size() < options.workers()) {
                boolean shared = options.driver() == Driver.CALLER && !loops.isEmpty();
                loops.add(shared ? loops.getFirst() : loop(options, libC, clock));
            }
        } catch (RuntimeException | Error e) {
            loops.forEach(EventLoop::close);
            throw e;
        }
        return loops;
    }

    private static EventLoop loop(TransferOptions options, LibC libC, LongSupplier clock) {
        if (!options.sealTcp()) {
            return new EventLoop(libC, clock);
        }
        SealingLibC sealing = new SealingLibC(libC, new SecureRandom());
        return new EventLoop(sealing, sealing, clock);
    }

    private static Drive drive(Driver driver, List<Worker> workers, LongSupplier clock, Consumer<Throwable> onBug) {
        int coreCount = Runtime.getRuntime().availableProcessors();
        return switch (driver) {
            case OWN_THREAD -> new ThreadDrive("kvm-transfer", workers, clock, coreCount, onBug);
            case CALLER -> new CallerDrive(workers, clock, coreCount, onBug);
        };
    }

    private static Transport transport(
            String name,
            TransferOptions options,
            InetAddress listenHost,
            InetAddress advertiseHost,
            EventLoop loop,
            SocketLinks links) {
        return switch (name) {
            case TransferOptions.LIBFABRIC -> new LibFabricTransport(loop, links, options, listenHost, advertiseHost);
            case TransferOptions.SHM -> new ShmTransport(loop, links, options.connectLimitNs());
            case TransferOptions.TCP -> new TcpTransport(loop, links, options, listenHost, advertiseHost);
            default -> throw new AssertionError("transport " + name);
        };
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
