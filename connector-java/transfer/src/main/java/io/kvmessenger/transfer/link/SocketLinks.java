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
import io.kvmessenger.transfer.spi.LinkError;
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
 * Control sockets of the operating system: Unix sockets between processes of one user on one host, internet sockets
 * between any two. Worker only, except where stated.
 *
 * <p>If both reach a peer the Unix socket is preferred: descriptors can travel on it, so every domain may be used.
 *
 * <p>An engine has one instance per worker. The first one listens for all; a socket that names an admission of another
 * worker is handed to that worker, which checks that the admission is still live and that the peer has its key.
 */
public final class SocketLinks implements Links {
    private static final int NAME_RANDOM_BYTES = 16;

    private final SocketLinks first;
    /** The instances of all workers, if this is the first; complete before a worker begins. */
    private final List<SocketLinks> all = new ArrayList<>();

    private final EventLoop loop;
    private final long connectLimitNs;
    private final long idleLimitNs;
    private final SecureRandom random = new SecureRandom();
    private final IntPredicate ofThisUser;
    private final IntUnaryOperator deathOfPeer;
    private final Farewells farewells;
    /** Listeners of the first instance: those for Unix sockets first. */
    private final List<Door> doors = new ArrayList<>();
    /** Sockets accepted by the first worker for this one. */
    private final Queue<Arrival> arrivals = new ConcurrentLinkedQueue<>();

    /** Of the first instance: listeners for data sockets only, whose addresses peers are sent later. */
    private final List<Door> dataDoors = new ArrayList<>();

    /** Of the first instance: the addresses of its data listeners, and the ones that other listeners cover. */
    private final List<InetSocketAddress> dataAddresses = new ArrayList<>();

    private boolean takesNoArrivals;
    /** Null until this worker has a domain. */
    private InboundPort port;

    private Figures figures;

    private final List<AdmittedLink> admitted = new ArrayList<>();
    private List<Domain> domains = List.of();

    /**
     * @param connectLimitNs how long each step of a peer may take until it is ready
     * @param idleLimitNs how long a peer may be silent on an internet socket
     */
    public SocketLinks(EventLoop loop, long connectLimitNs, long idleLimitNs) {
        this(loop, connectLimitNs, idleLimitNs, loop.sockets()::isOfThisUser, loop.sockets()::deathOfPeer);
    }

    /**
     * @param ofThisUser whether the other end of a Unix socket belongs to this user
     * @param deathOfPeer a descriptor that becomes readable when the process at a Unix socket's other end has ended
     */
    SocketLinks(
            EventLoop loop,
            long connectLimitNs,
            long idleLimitNs,
            IntPredicate ofThisUser,
            IntUnaryOperator deathOfPeer) {
        this(null, loop, connectLimitNs, idleLimitNs, ofThisUser, deathOfPeer);
    }

    private SocketLinks(
            SocketLinks first,
            EventLoop loop,
            long connectLimitNs,
            long idleLimitNs,
            IntPredicate ofThisUser,
            IntUnaryOperator deathOfPeer) {
        this.first = first == null ? this : first;
        this.loop = loop;
        this.connectLimitNs = connectLimitNs;
        this.idleLimitNs = idleLimitNs;
        this.ofThisUser = ofThisUser;
        this.deathOfPeer = deathOfPeer;
        farewells = new Farewells(loop);
        this.first.all.add(this);
    }

    /** The instance of another worker of the engine; called on the first worker's. Before a worker begins. */
    public SocketLinks beside(EventLoop ofOther) {
        return new SocketLinks(
                this,
                ofOther,
                connectLimitNs,
                idleLimitNs,
                ofOther.sockets()::isOfThisUser,
                ofOther.sockets()::deathOfPeer);
    }

    /**
     * Listens on a Unix socket with an unused name, or lets the first worker do so; before a worker begins.
     *
     * @param transport peers that support it dial this socket
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
     * Listens on an internet socket, or lets the first worker do so; before a worker begins.
     *
     * @param transport peers that support it dial this socket
     * @param advertiseHost literal address or name that peers are told
     * @param portNumber 0 for any free port
     * @param advertisePort port that peers are told; 0 for the one that is listened on
     * @return the address for peers
     * @throws IllegalArgumentException naming the option that is wrong
     * @throws IllegalStateException when the operating system refuses
     */
    public String listenInet(
            String transport,
            InetAddress listenHost,
            String advertiseHost,
            int portNumber,
            int advertisePort,
            InboundPort inbound,
            Figures counted) {
        port = inbound;
        figures = counted;
        if (first != this) {
            return first.locationOf(transport);
        }
        int fd = loop.sockets().listenInet("listen_host", listenHost, portNumber);
        int port = advertisePort > 0 ? advertisePort : loop.sockets().port(fd);
        String location =
                SocketLocation.format(advertiseHost, port, loop.seals().sealing());
        doors.addLast(new Door(transport, false, location, fd));
        return location;
    }

    /**
     * Listens on further addresses for the data sockets of a transport that has a listener, or lets the first worker do
     * so; before a worker begins. Proofs on sockets dialled there refer to the location of that listener.
     *
     * @param listenHost address of the transport's listener: hosts that it covers need no listener of their own
     * @param portNumber 0 for any free port
     * @param advertisePorts port that peers are told for each host; empty for those that are listened on
     * @return the address of each host for peers
     * @throws IllegalArgumentException naming the option that is wrong
     * @throws IllegalStateException when the operating system refuses
     */
    public List<InetSocketAddress> listenData(
            String transport,
            InetAddress listenHost,
            List<InetAddress> hosts,
            int portNumber,
            List<Integer> advertisePorts) {
        if (first != this) {
            return first.dataAddresses;
        }
        String location = locationOf(transport);
        for (InetAddress host : hosts) {
            int port = loop.sockets().port(doorOf(transport).fd);
            if (!covers(listenHost, host)) {
                int fd = loop.sockets().listenInet("data_hosts", host, portNumber);
                port = loop.sockets().port(fd);
                dataDoors.add(new Door(transport, false, location, fd));
            }
            int index = dataAddresses.size();
            dataAddresses.add(new InetSocketAddress(host, advertisePorts.isEmpty() ? port : advertisePorts.get(index)));
        }
        return dataAddresses;
    }

    /** IPv6's wildcard accepts IPv4 too. */
    private static boolean covers(InetAddress listenHost, InetAddress host) {
        boolean families = listenHost instanceof Inet6Address || host instanceof Inet4Address;
        return listenHost.equals(host) || (listenHost.isAnyLocalAddress() && families);
    }

    private String locationOf(String transport) {
        return doorOf(transport).location;
    }

    private Door doorOf(String transport) {
        for (Door door : doors) {
            if (door.transport.equals(transport)) {
                return door;
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
                    ways.add(new DialledLink.Way(door.transport, door.local, offered.location(), null, connectLimitNs));
                }
            }
        }
        return new DialledLink(loop, ways, admissionKey, events, idleLimitNs, ofThisUser, nowNs);
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

    /** First worker: hands a socket over to this worker. */
    private synchronized void hand(Arrival arrival) {
        if (takesNoArrivals) {
            loop.libC().close(arrival.fd);
        } else {
            arrivals.add(arrival);
            loop.wake();
        }
    }

    /**
     * Handles a socket. An error of this engine ends nothing else, and the peer is sent the reason. The admission is
     * looked up by its own worker: only there can it not end meanwhile.
     */
    private void receive(Arrival arrival) {
        InboundAdmission admission;
        try {
            admission = admissionOf(arrival);
        } catch (RuntimeException | Error error) {
            reject(arrival.fd, TransferFault.UNREACHABLE, LinkError.describe(error));
            return;
        }
        if (admission == null) {
            reject(arrival.fd, TransferFault.NOT_ADMITTED, "the peer has shown no key of a live admission");
        } else {
            admit(arrival, admission);
        }
    }

    /** The live admission whose key the peer has; then its socket is set up. Else null. */
    private InboundAdmission admissionOf(Arrival arrival) {
        int fd = arrival.fd;
        InboundAdmission admission = arrival.hello.admissionAt(port, arrival.asked, arrival.door.location);
        if (admission != null && !arrival.door.local) {
            loop.sockets().keepAlive(fd, idleLimitNs);
            loop.seals()
                    .onAccepted(
                            fd,
                            arrival.asked,
                            arrival.hello,
                            admission.admission().key());
        }
        return admission;
    }

    private void admit(Arrival arrival, InboundAdmission admission) {
        int fd = arrival.fd;
        Hello hello = arrival.hello;
        if (hello.role() != Hello.CONTROL) {
            take(fd, hello, admission);
        } else if (admission.link() != null) {
            reject(fd, TransferFault.NOT_ADMITTED, "the admission is in use");
        } else {
            open(fd, arrival.door.local, hello, admission);
        }
    }

    private void take(int fd, Hello hello, InboundAdmission admission) {
        AdmittedLink link = admission.link() instanceof AdmittedLink open ? open : null;
        boolean taken;
        try {
            taken = link != null && link.take(fd, hello);
        } catch (IllegalStateException e) {
            reject(fd, TransferFault.UNREACHABLE, e.getMessage());
            return;
        } catch (RuntimeException | Error error) {
            // Whose the socket is then is unknown: it ends with its link, which sends the reason.
            link.onError(error);
            return;
        }
        if (!taken) {
            reject(fd, TransferFault.PROTOCOL, "no place for data path " + Hello.lane(hello.role()));
        }
    }

    private void open(int fd, boolean local, Hello hello, InboundAdmission admission) {
        AdmittedLink link;
        try {
            if (!local) {
                loop.sockets().setNoDelay(fd);
            }
            Heartbeats heartbeats = Heartbeats.of(hello, local, idleLimitNs, loop.nowNs());
            int deathFd = local ? deathOfPeer.applyAsInt(fd) : -1;
            link = new AdmittedLink(
                    loop, port, admission, figures, domains, local, heartbeats, fd, deathFd, connectLimitNs);
        } catch (IllegalStateException e) {
            reject(fd, TransferFault.UNREACHABLE, e.getMessage());
            return;
        } catch (RuntimeException | Error error) {
            reject(fd, TransferFault.UNREACHABLE, LinkError.describe(error));
            return;
        }
        admitted.add(link);
        link.begin();
    }

    private void reject(int fd, TransferFault fault, String detail) {
        figures.increment(TransferCounter.PATHS_REJECTED);
        farewells.say(fd, fault, detail);
    }

    /** A socket whose hello has been read. */
    private record Arrival(Door door, int fd, Hello hello, Challenge asked) {}

    /** A listener and what its sockets are accepted for. */
    private final class Door {
        final String transport;
        final boolean local;
        final String location;
        final int fd;
        final Listener listener;

        Door(String transport, boolean local, String location, int fd) {
            this.transport = transport;
            this.local = local;
            this.location = location;
            this.fd = fd;
            IntPredicate mayEnter = local ? ofThisUser : any -> true;
            listener = new Listener(loop, fd, figures, mayEnter, random, this::onHello);
        }

        private void onHello(int fd, Hello hello, Challenge asked, long nowNs) {
            if (!Hello.speaks(hello.version(), hello.version())) {
                reject(fd, TransferFault.PROTOCOL, Hello.versionFault(hello.version(), hello.version()));
                return;
            }
            SocketLinks worker;
            try {
                worker = workerOf(hello);
            } catch (RuntimeException | Error error) {
                reject(fd, TransferFault.UNREACHABLE, LinkError.describe(error));
                return;
            }
            Arrival arrival = new Arrival(this, fd, hello, asked);
            if (worker == SocketLinks.this) {
                receive(arrival);
            } else {
                worker.hand(arrival);
            }
        }

        /** The one that has the admission which the peer names; this one if none has. */
        private SocketLinks workerOf(Hello hello) {
            for (SocketLinks other : all) {
                if (other != SocketLinks.this && other.port != null && hello.isNamedAt(other.port)) {
                    return other;
                }
            }
            return SocketLinks.this;
        }
    }
}
