package io.kvmessenger.transfer.shm;

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
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.function.IntPredicate;
import java.util.function.IntUnaryOperator;

/**
 * Listens on a Unix socket in the abstract namespace and maps peers' memory. Worker only, except where said.
 *
 * <p>Memory is handed only to a peer of the same user that knows a live key. It is offered only while all registered
 * regions can be mapped: a peer that cannot reach one of them must use another transport for all.
 */
public final class ShmDomain implements Domain {
    private static final int NAME_RANDOM_BYTES = 16;

    private final EventLoop loop;
    private final TransferOptions options;
    private final InboundPort port;
    private final Figures figures;
    private final IntPredicate ofThisUser;
    private final IntUnaryOperator deathOfPeer;
    private final String location;
    private final Listener listener;
    private final Farewells farewells;
    private final List<ShmInboundLink> inbound = new ArrayList<>();

    ShmDomain(EventLoop loop, TransferOptions options, InboundPort port, Figures figures) {
        this(loop, options, port, figures, loop.sockets()::isOfThisUser, loop.sockets()::deathOfPeer);
    }

    /**
     * @param ofThisUser whether the other end of a socket is this user's
     * @param deathOfPeer a descriptor that becomes readable when the process at a socket's other end has ended
     */
    ShmDomain(
            EventLoop loop,
            TransferOptions options,
            InboundPort port,
            Figures figures,
            IntPredicate ofThisUser,
            IntUnaryOperator deathOfPeer) {
        this.loop = loop;
        this.options = options;
        this.port = port;
        this.figures = figures;
        SecureRandom random = new SecureRandom();
        byte[] name = new byte[NAME_RANDOM_BYTES];
        random.nextBytes(name);
        location = "kvmessenger-" + HexFormat.of().formatHex(name);
        this.ofThisUser = ofThisUser;
        this.deathOfPeer = deathOfPeer;
        listener =
                new Listener(loop, loop.sockets().listenAbstract(location), figures, ofThisUser, random, this::onHello);
        farewells = new Farewells(loop);
    }

    @Override
    public String name() {
        return TransferOptions.SHM;
    }

    @Override
    public String location() {
        return location;
    }

    @Override
    public RemoteKey register(Region region, int memfd) {
        RegionDescriptor descriptor = region.descriptor();
        return memfd == Region.NOT_SHAREABLE
                ? null
                : new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), memfd);
    }

    @Override
    public OutboundLink connect(
            String peerLocation, byte[] admissionKey, MessageQueue messages, LinkEvents events, long nowNs) {
        return new ShmOutboundLink(
                loop,
                peerLocation,
                admissionKey,
                messages,
                events,
                figures,
                nowNs + options.connectLimitNs(),
                ofThisUser);
    }

    private void onHello(int fd, Hello hello, Challenge asked, long nowNs) {
        if (hello.version() != Hello.VERSION) {
            reject(fd, TransferFault.PROTOCOL, Hello.versionFault(hello.version()));
            return;
        }
        InboundAdmission admission = hello.admissionAt(port, asked, location);
        if (admission == null) {
            reject(fd, TransferFault.NOT_ADMITTED, "the peer has shown no key of a live admission");
        } else if (hello.role() != Hello.CONTROL) {
            reject(fd, TransferFault.PROTOCOL, "no place for data path " + hello.role());
        } else if (admission.link() != null) {
            reject(fd, TransferFault.NOT_ADMITTED, "the admission is in use");
        } else if (!port.reachesAll(this)) {
            reject(fd, TransferFault.UNREACHABLE, "a region of this engine has no descriptor to map");
        } else {
            accept(fd, admission, nowNs);
        }
    }

    private void accept(int fd, InboundAdmission admission, long nowNs) {
        ShmInboundLink link;
        try {
            link = new ShmInboundLink(
                    loop,
                    port,
                    wanted -> port.keyOf(this, wanted),
                    admission,
                    figures,
                    fd,
                    nowNs + options.connectLimitNs(),
                    deathOfPeer);
        } catch (IllegalStateException e) {
            // The peer may still reach this engine by another transport.
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
        int work = listener.doWork(nowNs);
        farewells.doWork(nowNs);
        for (Iterator<ShmInboundLink> links = inbound.iterator(); links.hasNext(); ) {
            int taken = links.next().doWork(nowNs);
            if (taken < 0) {
                links.remove();
            } else {
                work += taken;
            }
        }
        return work;
    }

    @Override
    public void arm() {
        for (int i = 0; i < inbound.size(); i++) {
            inbound.get(i).park();
        }
    }

    @Override
    public void disarm() {
        for (int i = 0; i < inbound.size(); i++) {
            inbound.get(i).unpark();
        }
    }

    @Override
    public void close() {
        listener.close();
        farewells.close();
        inbound.forEach(ShmInboundLink::abandon);
        inbound.clear();
    }
}
