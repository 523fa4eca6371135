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
import java.net.Inet4Address;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.IntPredicate;
import java.util.function.IntUnaryOperator;

/**
 * Control sockets of the operating system: Unix sockets between processes of one user on one host, internet sockets between
 * any two. Worker only, except where said.
 *
 * <p>Where both reach a peer the Unix socket is taken, since descriptors can travel on it, so that every domain may be used.
 *
 * <p>An engine has one of these for each worker. The first listens for all; a socket that names an admission of another
 * worker's is handed to that one, which looks whether the admission still lives and whether the peer has its key.
 */
public final class SocketLinks implements Links {
    private static final int NAME_RANDOM_BYTES = 16;

    /** The one that listens. */
    private final SocketLinks first;
    /** Of all workers, where this is the first; complete before a worker begins. */
    private final List<SocketLinks> all = new ArrayList<>();

    private final EventLoop loop;
    private final long connectLimitNs;
    private final SecureRandom random = new SecureRandom();
    private final IntPredicate ofThisUser;
    private final IntUnaryOperator deathOfPeer;
    private final Farewells farewells;
    /** Of the first: those for Unix sockets first. */
    private final List<Door> doors = new ArrayList<>();
    /** Sockets that another worker has let in for this one. */
    private final Queue<Arrival> arrivals = new ConcurrentLinkedQueue<>();

    /** Of the first: those that peers are told of later, for data sockets only. */
    private final List<Door> dataDoors = new ArrayList<>();

    /** Of the first: where these are, and what the others cover. */
    private final List<InetSocketAddress> dataAddresses = new ArrayList<>();

    private boolean takesNoArrivals;
    /** Null until this worker has a domain. */
    private InboundPort port;

    private Figures figures;

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
        this(null, loop, connectLimitNs, ofThisUser, deathOfPeer);
    }

    private SocketLinks(
            SocketLinks first,
            EventLoop loop,
            long connectLimitNs,
            IntPredicate ofThisUser,
            IntUnaryOperator deathOfPeer) {
        this.first = first == null ? this : first;
        this.loop = loop;
        this.connectLimitNs = connectLimitNs;
        this.ofThisUser = ofThisUser;
        this.deathOfPeer = deathOfPeer;
        farewells = new Farewells(loop);
        this.first.all.add(this);
    }

    /** Those of another worker of the engine, of which these are the first's. Before a worker begins. */
    public SocketLinks beside(EventLoop ofOther) {
        return new SocketLinks(
                this, ofOther, connectLimitNs, ofOther.sockets()::isOfThisUser, ofOther.sockets()::deathOfPeer);
    }

    /**
     * Listens on a Unix socket of a name that nothing else has, or lets the first worker's do so; before a worker begins.
     *
     * @param transport peers that have it dial there
     * @return the name
     * @throws IllegalStateException when the operating system refuses
     */
    public String listenLocal(String transport, InboundPort inbound, Figures counted) {
        port = inbound;
        figures = counted;
        if (first != this) {
            return first.locationOf(transport);
        }
        byte[] name = new byte[NAME_RANDOM_BYTES];
        random.nextBytes(name);
        String location = "kvmessenger-" + HexFormat.of().formatHex(name);
        int fd = loop.sockets().listenAbstract(location);
        doors.addFirst(new Door(transport, true, location, fd));
        return location;
    }

    /**
     * Listens on an internet socket, or lets the first worker's do so; before a worker begins.
     *
     * @param transport peers that have it dial there
     * @param portNumber 0 for any that is free
     * @return where peers reach it
     * @throws IllegalArgumentException naming the option that is wrong
     * @throws IllegalStateException when the operating system refuses
     */
    public String listenInet(
            String transport,
            InetAddress listenHost,
            InetAddress advertiseHost,
            int portNumber,
            InboundPort inbound,
            Figures counted) {
        port = inbound;
        figures = counted;
        if (first != this) {
            return first.locationOf(transport);
        }
        int fd = loop.sockets().listenInet("listen_host", listenHost, portNumber);
        String location = SocketLocation.format(
                advertiseHost, loop.sockets().port(fd), loop.seals().sealing());
        doors.addLast(new Door(transport, false, location, fd));
        return location;
    }

    /**
     * Listens on more addresses for the data sockets of a transport that has a listener, or lets the first worker's do so; before
     * a worker begins. The proof of a socket dialled there is for the listener's own location.
     *
     * @param listenHost what the transport's listener listens on: where it covers one of the hosts, that needs no other
     * @param portNumber 0 for any that is free
     * @return where each host is reached
     * @throws IllegalArgumentException naming the option that is wrong
     * @throws IllegalStateException when the operating system refuses
     */
    public List<InetSocketAddress> listenData(
            String transport, InetAddress listenHost, List<InetAddress> hosts, int portNumber) {
        if (first != this) {
            return first.dataAddresses;
        }
        String location = locationOf(transport);
        int listenPort = SocketLocation.parse(location, loop.seals().sealing()).getPort();
        for (InetAddress host : hosts) {
            int port = listenPort;
            if (!covers(listenHost, host)) {
                int fd = loop.sockets().listenInet("data_hosts", host, portNumber);
                port = loop.sockets().port(fd);
                dataDoors.add(new Door(transport, false, location, fd));
            }
            dataAddresses.add(new InetSocketAddress(host, port));
        }
        return dataAddresses;
    }

    /** IPv6's wildcard takes IPv4 as well. */
    private static boolean covers(InetAddress listenHost, InetAddress host) {
        boolean families = listenHost instanceof Inet6Address || host instanceof Inet4Address;
        return listenHost.equals(host) || (listenHost.isAnyLocalAddress() && families);
    }

    private String locationOf(String transport) {
        for (Door door : doors) {
            if (door.transport.equals(transport)) {
                return door.location;
            }
        }
        throw new IllegalStateException("the first worker does not listen for " + transport);
    }

    @Override
    public void use(List<Domain> all) {
        domains = List.copyOf(all);
    }

    @Override
    public OutboundLink connect(EngineAddress target, byte[] admissionKey, LinkEvents events, long nowNs) {
        List<DialledLink.Way> ways = new ArrayList<>();
        for (Door door : first.doors) {
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
        for (Arrival arrival = arrivals.poll(); arrival != null; arrival = arrivals.poll()) {
            receive(arrival);
            work++;
        }
        for (int i = 0; i < doors.size(); i++) {
            work += doors.get(i).listener.doWork(nowNs);
        }
        for (int i = 0; i < dataDoors.size(); i++) {
            work += dataDoors.get(i).listener.doWork(nowNs);
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
        refuseArrivals();
        doors.forEach(door -> door.listener.close());
        dataDoors.forEach(door -> door.listener.close());
        farewells.close();
        admitted.forEach(AdmittedLink::abandon);
        admitted.clear();
    }

    private synchronized void refuseArrivals() {
        takesNoArrivals = true;
        arrivals.forEach(arrival -> loop.libC().close(arrival.fd));
        arrivals.clear();
    }

    /** First worker: the socket is this worker's from now on. */
    private synchronized void hand(Arrival arrival) {
        if (takesNoArrivals) {
            loop.libC().close(arrival.fd);
        } else {
            arrivals.add(arrival);
            loop.wake();
        }
    }

    /** An error of this engine keeps the socket, and is the end of nothing else. */
    private void receive(Arrival arrival) {
        try {
            admit(arrival);
        } catch (RuntimeException | Error error) {
            figures.increment(TransferCounter.PATHS_REJECTED);
        }
    }

    /** The admission is looked up by its own worker: only there it cannot end meanwhile. */
    private void admit(Arrival arrival) {
        int fd = arrival.fd;
        Hello hello = arrival.hello;
        boolean local = arrival.door.local;
        InboundAdmission admission = hello.admissionAt(port, arrival.asked, arrival.door.location);
        if (admission == null) {
            reject(fd, TransferFault.NOT_ADMITTED, "the peer has shown no key of a live admission");
            return;
        }
        if (!local) {
            loop.seals()
                    .onAccepted(fd, arrival.asked, hello, admission.admission().key());
        }
        if (hello.role() != Hello.CONTROL) {
            take(fd, hello, admission);
        } else if (admission.link() != null) {
            reject(fd, TransferFault.NOT_ADMITTED, "the admission is in use");
        } else {
            open(fd, local, admission);
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

    private void open(int fd, boolean local, InboundAdmission admission) {
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

    /** A socket that has said its hello. */
    private record Arrival(Door door, int fd, Hello hello, Challenge asked) {}

    /** Where peers come in. */
    private final class Door {
        final String transport;
        final boolean local;
        final String location;
        final Listener listener;

        Door(String transport, boolean local, String location, int fd) {
            this.transport = transport;
            this.local = local;
            this.location = location;
            IntPredicate mayEnter = local ? ofThisUser : any -> true;
            listener = new Listener(loop, fd, figures, mayEnter, random, this::onHello);
        }

        private void onHello(int fd, Hello hello, Challenge asked, long nowNs) {
            if (!Hello.speaks(hello.version(), hello.version())) {
                reject(fd, TransferFault.PROTOCOL, Hello.versionFault(hello.version(), hello.version()));
                return;
            }
            Arrival arrival = new Arrival(this, fd, hello, asked);
            for (SocketLinks other : all) {
                if (other != SocketLinks.this && other.port != null && hello.isNamedAt(other.port)) {
                    other.hand(arrival);
                    return;
                }
            }
            admit(arrival);
        }
    }
}
