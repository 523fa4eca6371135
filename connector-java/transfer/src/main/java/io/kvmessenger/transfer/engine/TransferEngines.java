package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.shm.ShmTransport;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.List;

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
        return new HostTransferEngine(
                options,
                libC,
                (loop, desk, figures) -> transports(options, listenHost, advertiseHost, loop, desk, figures));
    }

    private static List<Transport> transports(
            TransferOptions options,
            InetAddress listenHost,
            InetAddress advertiseHost,
            EventLoop loop,
            InboundDesk desk,
            Figures figures) {
        List<Transport> transports = new ArrayList<>();
        try {
            for (String name : options.transports()) {
                transports.add(
                        switch (name) {
                            case TransferOptions.SHM -> new ShmTransport(loop, options, desk, figures);
                            case TransferOptions.TCP ->
                                new TcpTransport(loop, options, listenHost, advertiseHost, desk, figures);
                            default -> throw new AssertionError("transport " + name);
                        });
            }
            return transports;
        } catch (RuntimeException e) {
            transports.forEach(Transport::close);
            throw e;
        }
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
