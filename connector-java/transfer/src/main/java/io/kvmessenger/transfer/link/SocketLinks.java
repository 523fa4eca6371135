package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
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
import io.kvmessenger.transfer.spi.Links;
import io.kvmessenger.transfer.spi.OutboundLink;
import java.net.InetAddress;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.function.IntPredicate;
import java.util.function.IntUnaryOperator;

/**
 * Control sockets of the operating system: Unix sockets between processes of one user on one host, internet sockets between
 * any two. Worker only, except where said.
 *
 * <p>Where both reach a peer the Unix socket is taken, since descriptors can travel on it, so that every domain may be used.
 */
public final class SocketLinks implements Links {
    private static final int NAME_RANDOM_BYTES = 16;

    private final EventLoop loop;
    private final long connectLimitNs;
    private final SecureRandom random = new SecureRandom();
    private final IntPredicate ofThisUser;
    private final IntUnaryOperator deathOfPeer;
    private final Farewells farewells;
    /** Those for Unix sockets first. */
    private final List<Door> doors = new ArrayList<>();

    private final List<AdmittedLink> admitted = new ArrayList<>();
    private List<Domain> domains = List.of();

    /** @param connectLimitNs how long each step of a peer's may take until it is ready */
    public SocketLinks(EventLoop loop, long connectLimitNs) {
        this(loop, connectLimitNs, loop.sockets()::isOfThisUser, loop.sockets()::deathOfPeer);
    }

    /**
     * @param ofThisUser whether the other end of a Unix socket is this user's
     * @param deathOfPeer a descriptor that becomes readable when the process at a Unix socket's other end has ended
     */
    SocketLinks(EventLoop loop, long connectLimitNs, IntPredicate ofThisUser, IntUnaryOperator deathOfPeer) {
        this.loop = loop;
        this.connectLimitNs = connectLimitNs;
        this.ofThisUser = ofThisUser;
        this.deathOfPeer = deathOfPeer;
        farewells = new Farewells(loop);
    }

    /**
     * Listens on a Unix socket of a name that nothing else has; before the worker begins.
     *
     * @param transport peers that have it dial there
     * @return the name
     * @throws IllegalStateException when the operating system refuses
     */
    public String listenLocal(String transport, InboundPort port, Figures figures) {
        byte[] name = new byte[NAME_RANDOM_BYTES];
        random.nextBytes(name);
        String location = "kvmessenger-" + HexFormat.of().formatHex(name);
        int fd = loop.sockets().listenAbstract(location);
        doors.addFirst(new Door(transport, true, location, fd, port, figures));
        return location;
    }

    /**
     * Listens on an internet socket; before the worker begins.
     *
     * @param transport peers that have it dial there
     * @param port 0 for any that is free
     * @return where peers reach it
     * @throws IllegalArgumentException naming the option that is wrong
     * @throws IllegalStateException when the operating system refuses
     */
    public String listenInet(
            String transport,
            InetAddress listenHost,
            InetAddress advertiseHost,
            int port,
            InboundPort inbound,
            Figures figures) {
        int fd = loop.sockets().listenInet(listenHost, port);
        String location = SocketLocation.format(
                advertiseHost, loop.sockets().port(fd), loop.seals().sealing());
        doors.addLast(new Door(transport, false, location, fd, inbound, figures));
        return location;
    }

    @Override
    public void use(List<Domain> all) {
        domains = List.copyOf(all);
    }

    @Override
    public OutboundLink connect(EngineAddress target, byte[] admissionKey, LinkEvents events, long nowNs) {
        List<DialledLink.Way> ways = new ArrayList<>();
        for (Door door : doors) {
            for (TransportAddress offered : target.transports()) {
                if (offered.transport().equals(door.transport)) {
                    ways.add(new DialledLink.Way(door.transport, door.local, offered.location()));
                }
            }
        }
        return new DialledLink(loop, ways, admissionKey, events, connectLimitNs, ofThisUser, nowNs);
    }

    @Override
    public int poll(long nowNs) {
        int work = 0;
        for (int i = 0; i < doors.size(); i++) {
            work += doors.get(i).listener.doWork(nowNs);
        }
        farewells.doWork(nowNs);
        for (int i = admitted.size() - 1; i >= 0; i--) {
            if (!admitted.get(i).doWork(nowNs)) {
                admitted.remove(i);
            }
        }
        return work;
    }

    @Override
    public void close() {
        doors.forEach(door -> door.listener.close());
        farewells.close();
        admitted.forEach(AdmittedLink::abandon);
        admitted.clear();
    }

    /** Where peers come in. */
    private final class Door {
        final String transport;
        final boolean local;
        final String location;
        final Listener listener;
        private final InboundPort port;
        private final Figures figures;

        Door(String transport, boolean local, String location, int fd, InboundPort port, Figures figures) {
            this.transport = transport;
            this.local = local;
            this.location = location;
            this.port = port;
            this.figures = figures;
            IntPredicate mayEnter = local ? ofThisUser : any -> true;
            listener = new Listener(loop, fd, figures, mayEnter, random, this::onHello);
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
            if (!local) {
                loop.seals().onAccepted(fd, asked, hello, admission.admission().key());
            }
            if (hello.role() != Hello.CONTROL) {
                take(fd, hello, admission);
            } else if (admission.link() != null) {
                reject(fd, TransferFault.NOT_ADMITTED, "the admission is in use");
            } else {
                open(fd, admission);
            }
        }

        private void take(int fd, Hello hello, InboundAdmission admission) {
            try {
                if (!(admission.link() instanceof AdmittedLink link) || !link.take(fd, hello)) {
                    reject(fd, TransferFault.PROTOCOL, "no place for data path " + Hello.lane(hello.role()));
                }
            } catch (IllegalStateException e) {
                reject(fd, TransferFault.UNREACHABLE, e.getMessage());
            }
        }

        private void open(int fd, InboundAdmission admission) {
            if (!local) {
                loop.sockets().setNoDelay(fd);
            }
            int deathFd = local ? deathOfPeer.applyAsInt(fd) : -1;
            AdmittedLink link;
            try {
                link = new AdmittedLink(loop, port, admission, figures, domains, local, fd, deathFd, connectLimitNs);
            } catch (IllegalStateException e) {
                reject(fd, TransferFault.UNREACHABLE, e.getMessage());
                return;
            }
            admitted.add(link);
        }

        private void reject(int fd, TransferFault fault, String detail) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            farewells.say(fd, fault, detail);
        }
    }
}
