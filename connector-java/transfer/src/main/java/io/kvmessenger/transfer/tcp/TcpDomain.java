package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Farewells;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Listener;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;

/** Listens for peers' sockets and opens sockets to peers. Worker only, except where said. */
public final class TcpDomain implements Domain {
    private static final long SCRAP_BYTES = 1 << 16;

    private final EventLoop loop;
    private final TransferOptions options;
    private final InboundPort port;
    private final Figures figures;
    private final String location;
    private final Listener listener;
    private final Farewells farewells;
    private final Arena arena;
    private final MemorySegment scrap;
    private final List<TcpInboundLink> inbound = new ArrayList<>();

    TcpDomain(
            EventLoop loop,
            TransferOptions options,
            InetAddress listenHost,
            InetAddress advertiseHost,
            InboundPort port,
            Figures figures) {
        this.loop = loop;
        this.options = options;
        this.port = port;
        this.figures = figures;
        int listenFd = loop.sockets().listenInet(listenHost, options.dataPort());
        location = SocketLocation.format(
                advertiseHost, loop.sockets().port(listenFd), loop.seals().sealing());
        listener = new Listener(loop, listenFd, figures, fd -> true, new SecureRandom(), this::onHello);
        farewells = new Farewells(loop);
        arena = Arena.ofShared();
        scrap = arena.allocate(SCRAP_BYTES);
    }

    @Override
    public String name() {
        return TransferOptions.TCP;
    }

    @Override
    public String location() {
        return location;
    }

    /** Any memory: its worker writes there itself. */
    @Override
    public RemoteKey register(Region region, int memfd) {
        RegionDescriptor descriptor = region.descriptor();
        return new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), Region.NOT_SHAREABLE);
    }

    @Override
    public OutboundLink connect(
            String peerLocation, byte[] admissionKey, MessageQueue messages, LinkEvents events, long nowNs) {
        return new TcpOutboundLink(
                loop,
                peerLocation,
                admissionKey,
                messages,
                events,
                figures,
                options.streamsPerPeer(),
                options.connectLimitNs(),
                nowNs);
    }

    private void onHello(int fd, Hello hello, Challenge asked, long nowNs) {
        if (hello.version() != Hello.VERSION) {
            reject(fd, TransferFault.PROTOCOL, Hello.versionFault(hello.version()));
            return;
        }
        InboundAdmission admission = hello.admissionAt(port, asked, location);
        if (admission == null) {
            reject(fd, TransferFault.NOT_ADMITTED, "the peer has shown no key of a live admission");
            return;
        }
        loop.seals().onAccepted(fd, asked, hello, admission.admission().key());
        if (hello.role() == Hello.CONTROL) {
            acceptControl(fd, hello, admission, nowNs);
        } else {
            attach(fd, hello, admission);
        }
    }

    private void attach(int fd, Hello hello, InboundAdmission admission) {
        try {
            if (!(admission.link() instanceof TcpInboundLink link) || !link.attach(fd, hello.role(), hello.count())) {
                reject(fd, TransferFault.PROTOCOL, "no place for data path " + hello.role());
            }
        } catch (IllegalStateException e) {
            reject(fd, TransferFault.UNREACHABLE, e.getMessage());
        }
    }

    private void acceptControl(int fd, Hello hello, InboundAdmission admission, long nowNs) {
        int count = hello.count();
        if (admission.link() != null) {
            reject(fd, TransferFault.NOT_ADMITTED, "the admission is in use");
        } else if (count < 1 || count > TransferOptions.STREAMS_PER_PEER_MAX) {
            reject(fd, TransferFault.PROTOCOL, "a peer wants " + count + " data paths");
        } else {
            loop.sockets().setNoDelay(fd);
            open(fd, count, admission, nowNs);
        }
    }

    private void open(int fd, int dataPathCount, InboundAdmission admission, long nowNs) {
        TcpInboundLink link;
        try {
            link = new TcpInboundLink(
                    loop, port, admission, figures, fd, dataPathCount, scrap, nowNs + options.connectLimitNs());
        } catch (IllegalStateException e) {
            reject(fd, TransferFault.UNREACHABLE, e.getMessage());
            return;
        }
        inbound.add(link);
    }

    private void reject(int fd, TransferFault fault, String detail) {
        figures.increment(TransferCounter.PATHS_REJECTED);
        farewells.say(fd, fault, detail);
    }

    @Override
    public int poll(long nowNs) {
        inbound.removeIf(link -> !link.doWork(nowNs));
        farewells.doWork(nowNs);
        return listener.doWork(nowNs);
    }

    @Override
    public void onWindowClosed(OpenWindow window) {
        inbound.forEach(link -> link.onWindowClosed(window));
    }

    @Override
    public void close() {
        listener.close();
        farewells.close();
        inbound.forEach(TcpInboundLink::abandon);
        inbound.clear();
        arena.close();
    }
}
