package io.kvmessenger.transfer;

import java.net.InetAddress;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The values of an engine's options. Here are those of the engine itself; an option of one transport is declared by its
 * {@code Transport}.
 *
 * <p>Immutable: each {@code with} returns a changed copy, and throws {@code IllegalArgumentException} naming the option.
 */
public final class TransferOptions {
    public static final String CUDA = "cuda";
    public static final String LIBFABRIC = "libfabric";
    public static final String SHM = "shm";
    public static final String TCP = "tcp";
    public static final String VERBS = "verbs";
    /** What a user does where no transport of both engines reaches the memory of both. */
    public static final String OTHER_TRANSPORT =
            "name in transports, on both sides, one that reaches the memory of both, such as tcp";

    /** Each network has its own rate estimate in every peer. */
    public static final int NETWORKS_MAX = 8;

    public static final int WORKERS_MAX = 16;
    /** A busy worker needs a core, and so does its peer's on the same host; most cores are for the inference engine. */
    private static final int CORES_PER_WORKER = 8;

    private static final int WORKERS_CHOSEN_MAX = 4;
    private static final int PORT_MAX = 65_535;
    private static final int REQUESTS_PER_PEER_LIMIT = 1 << 12;
    private static final Set<String> KNOWN = Set.of(CUDA, LIBFABRIC, SHM, TCP, VERBS);

    /** Literal address or name that the engine listens on. */
    public static final TransferOption<String> LISTEN_HOST = TransferOption.any("listen_host", "127.0.0.1");

    /** The address or name that peers are told to connect to, which only they look up; "" for {@link #LISTEN_HOST}. */
    public static final TransferOption<String> ADVERTISE_HOST = TransferOption.any("advertise_host", "");

    /**
     * Addresses of this machine that data sockets are offered on and dialled from, one for each network; none for
     * {@link #reachableHost} and the operating system's routing.
     */
    public static final TransferOption<List<String>> DATA_HOSTS =
            TransferOption.names("data_hosts", NETWORKS_MAX, "addresses");

    /** Port that data paths are accepted on; 0 for any free port. */
    public static final TransferOption<Integer> DATA_PORT = TransferOption.integer("data_port", 0, 0, PORT_MAX);

    /**
     * Ports that peers are told for data paths: none for those that are listened on, one for all addresses, or one for
     * each of {@link #DATA_HOSTS}.
     */
    public static final TransferOption<List<Integer>> ADVERTISE_DATA_PORTS = new TransferOption<>(
            "advertise_data_ports",
            List.of(),
            Integer.class,
            (option, ports) -> option.require(
                    ports.stream().allMatch(port -> port > 0 && port <= PORT_MAX),
                    ports,
                    "ports from 1 to " + PORT_MAX));

    /** Names of the transports offered and tried, fastest first. */
    public static final TransferOption<List<String>> TRANSPORTS =
            new TransferOption<>("transports", List.of(SHM, TCP), String.class, (option, names) -> {
                String known = "one of cuda, libfabric, shm, tcp, verbs";
                names.forEach(name -> option.require(KNOWN.contains(name), name, "each " + known));
                option.require(!names.isEmpty(), names, "at least " + known);
            });

    /** Writes queued for or in flight to one peer; a power of two. Beyond it a submit returns back pressure. */
    public static final TransferOption<Integer> REQUESTS_PER_PEER_MAX = new TransferOption<>(
            "requestsPerPeerMax",
            512,
            Integer.class,
            (option, count) -> option.require(
                    Integer.bitCount(count) == 1 && count >= 2 && count <= REQUESTS_PER_PEER_LIMIT,
                    count,
                    "a power of two, 2 to " + REQUESTS_PER_PEER_LIMIT));

    /** Share of a link that writes of a class keep while more urgent ones want all of it. */
    public static final TransferOption<Double> BULK_SHARE = new TransferOption<>(
            "bulk_share",
            0.2,
            Double.class,
            (option, share) -> option.require(share >= 0.01 && share <= 0.9, share, "0.01 to 0.9"));

    /** Whether what waits for a link is shown to this user's other processes, and theirs is heeded. */
    public static final TransferOption<Boolean> SHARE_LINKS = TransferOption.any("share_links", true);

    /** Limit on the time that one transport may take to reach a peer. */
    public static final TransferOption<Long> CONNECT_LIMIT_NS = TransferOption.nanos("connectLimitNs", 5_000_000_000L);

    /**
     * Limit on the time in which nothing comes from a peer over an idle socket, although both sides give heartbeats
     * there; an engine of mode {@link ThreadingMode#CALLER} gives them only while it is polled. The default is long
     * enough for a busy or stopped process, and short enough that firewalls' limits of minutes are found in time.
     */
    public static final TransferOption<Long> IDLE_LIMIT_NS = TransferOption.nanos("idleLimitNs", 15_000_000_000L);

    /** Whether tcp sockets are encrypted and authenticated; must be the same on both sides. */
    public static final TransferOption<Boolean> SEAL_TCP = TransferOption.any("sealTcp", false);

    /** Which thread moves the bytes. */
    public static final TransferOption<ThreadingMode> THREADING =
            TransferOption.any("threading", ThreadingMode.OWN_THREAD);

    /**
     * Number of workers that peers are spread over; each moves the bytes of its own peers. 0 for as many as suit the
     * machine.
     */
    public static final TransferOption<Integer> WORKERS = TransferOption.integer("transfer_workers", 1, 0, WORKERS_MAX);

    /**
     * Slabs that each peer writes to where a NIC does not reach a device's memory, each a bit of a record; 0 to let such
     * peers take the next transport.
     */
    public static final TransferOption<Integer> LANDING_SLABS =
            TransferOption.integer("landing_slabs", 8, 0, Long.SIZE);

    /** Length of such a slab, which is one write. */
    public static final TransferOption<Integer> LANDING_SLAB_KIB =
            TransferOption.integer("landing_slab_kib", 1 << 10, 64, 1 << 13);

    /** Peers of a worker that have such slabs at a time; further ones take the next transport. */
    public static final TransferOption<Integer> LANDING_PEERS = TransferOption.integer("landing_peers", 16, 1, 1 << 10);

    /** All of the above. */
    public static final List<TransferOption<?>> OPTIONS = List.of(
            LISTEN_HOST,
            ADVERTISE_HOST,
            DATA_HOSTS,
            DATA_PORT,
            ADVERTISE_DATA_PORTS,
            TRANSPORTS,
            REQUESTS_PER_PEER_MAX,
            CONNECT_LIMIT_NS,
            IDLE_LIMIT_NS,
            BULK_SHARE,
            SHARE_LINKS,
            SEAL_TCP,
            THREADING,
            WORKERS,
            LANDING_SLABS,
            LANDING_SLAB_KIB,
            LANDING_PEERS);

    private final Map<TransferOption<?>, Object> values;

    private TransferOptions(Map<TransferOption<?>, Object> values) {
        this.values = values;
        List<Integer> ports = get(ADVERTISE_DATA_PORTS);
        ADVERTISE_DATA_PORTS.require(
                ports.size() <= 1 || ports.size() == get(DATA_HOSTS).size(),
                ports,
                "one port, or one for each of data_hosts");
    }

    /** Loopback, shared memory before tcp, one worker with a thread of its own. */
    public static TransferOptions defaults() {
        return new TransferOptions(Map.of());
    }

    @SuppressWarnings("unchecked") // with has checked it
    public <T> T get(TransferOption<T> option) {
        return (T) values.getOrDefault(option, option.byDefault());
    }

    public <T> TransferOptions with(TransferOption<T> option, T value) {
        return withUntyped(option, value);
    }

    /** The same for a value whose type only the option knows, such as one that was read from JSON. */
    public TransferOptions withUntyped(TransferOption<?> option, Object value) {
        Map<TransferOption<?>, Object> changed = new HashMap<>(values);
        changed.put(option, option.checked(value));
        return new TransferOptions(changed);
    }

    /** Sets the listen address and the one that peers are told; if the latter is empty, the former is used. */
    public TransferOptions withHosts(String listen, String advertise) {
        return with(LISTEN_HOST, listen).with(ADVERTISE_HOST, advertise);
    }

    public TransferOptions withTransports(String... names) {
        return with(TRANSPORTS, List.of(names));
    }

    /** The address or name that peers are told. */
    public String reachableHost() {
        return reachableHost(get(LISTEN_HOST));
    }

    /** The same, given the address that is listened on. */
    public String reachableHost(InetAddress listening) {
        return reachableHost(listening.getHostAddress());
    }

    private String reachableHost(String listening) {
        return get(ADVERTISE_HOST).isEmpty() ? listening : get(ADVERTISE_HOST);
    }

    /**
     * The data port for a transport with one listener; 0, any free one, where one of those that take it first is offered.
     */
    public int dataPortAfter(String... takers) {
        return Stream.of(takers).anyMatch(get(TRANSPORTS)::contains) ? 0 : get(DATA_PORT);
    }

    /** The port that peers are told for the listener of data paths; 0 for the one that is listened on. */
    public int reachableDataPort() {
        List<Integer> ports = get(ADVERTISE_DATA_PORTS);
        int index = Math.max(0, get(DATA_HOSTS).indexOf(reachableHost()));
        return ports.isEmpty() ? 0 : ports.get(Math.min(index, ports.size() - 1));
    }

    /** The port that peers are told for each of {@link #DATA_HOSTS}; empty for those that are listened on. */
    public List<Integer> reachableDataPorts() {
        List<Integer> ports = get(ADVERTISE_DATA_PORTS);
        return ports.size() == 1 ? Collections.nCopies(get(DATA_HOSTS).size(), ports.getFirst()) : ports;
    }

    /** How many workers there are. */
    public int workerCount() {
        return get(WORKERS) == 0 ? workersForCores(Runtime.getRuntime().availableProcessors()) : get(WORKERS);
    }

    /** The number of workers that suits a machine with this many cores. */
    public static int workersForCores(int coreCount) {
        return Math.clamp(coreCount / CORES_PER_WORKER, 1, WORKERS_CHOSEN_MAX);
    }
}
