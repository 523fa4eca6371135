package io.kvmessenger.transfer;

import java.net.InetAddress;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Options for opening an engine: each with its default, its meaning and, in {@link #check}, what it may be.
 *
 * <p>Immutable: each {@code with} returns a changed copy, and throws {@code IllegalArgumentException} naming the option.
 */
public final class TransferOptions implements Cloneable {
    public static final String CUDA = "cuda";
    public static final String LIBFABRIC = "libfabric";
    public static final String SHM = "shm";
    public static final String TCP = "tcp";
    public static final String VERBS = "verbs";
    /** The name by which the loader finds NVIDIA's driver. */
    public static final String CUDA_LIBRARY = "libcuda.so.1";

    /** One worker moves the bytes of all streams to a peer, so more streams do not raise the throughput. */
    public static final int STREAMS_PER_PEER_MAX = 16;

    /** Each network has its own rate estimate in every peer. */
    public static final int DATA_HOSTS_MAX = 8;

    public static final int WORKERS_MAX = 16;
    /** A busy worker needs a core, and so does its peer's on the same host; most cores are for the inference engine. */
    private static final int CORES_PER_WORKER = 8;

    private static final int WORKERS_CHOSEN_MAX = 4;

    public static final int PORT_MAX = 65_535;
    /** Long enough for a busy or stopped process, short enough that firewalls' limits of minutes are found in time. */
    public static final long IDLE_LIMIT_NS = 15_000_000_000L;

    public static final int REQUESTS_PER_PEER_MAX = 1 << 12;

    private static final Set<String> KNOWN = Set.of(CUDA, LIBFABRIC, SHM, TCP, VERBS);

    private String listenHost = "127.0.0.1";
    private String advertiseHost = "";
    private List<String> dataHosts = List.of();
    private int dataPort = 0;
    private List<Integer> advertiseDataPorts = List.of();
    private List<String> transports = List.of(SHM, TCP);
    private int streamsPerPeer = 2;
    private int requestsPerPeerMax = 512;
    private long connectLimitNs = 5_000_000_000L;
    private long idleLimitNs = IDLE_LIMIT_NS;
    private boolean sealTcp = false;
    private ThreadingMode threading = ThreadingMode.OWN_THREAD;
    private int workers = 1;
    private FabricChoice fabric = FabricChoice.installed();
    private List<String> verbsDevices = List.of();
    private boolean dmaBuf = true;
    private String cudaLibrary = CUDA_LIBRARY;

    private TransferOptions() {}

    /** Loopback, shared memory before tcp, one worker with a thread of its own. */
    public static TransferOptions defaults() {
        return new TransferOptions();
    }

    /** Literal address or name that the engine listens on. */
    public String listenHost() {
        return listenHost;
    }

    /** Sets the listen address and the one that peers are told; if the latter is empty, the former is used. */
    public TransferOptions withHosts(String listen, String advertise) {
        return with(copy -> {
            copy.listenHost = listen;
            copy.advertiseHost = advertise;
        });
    }

    /**
     * The address or name that peers are told to connect to, which only they look up; "" for that of {@link
     * #listenHost}.
     */
    public String advertiseHost() {
        return advertiseHost;
    }

    /**
     * Addresses of this machine that data sockets are offered on and dialled from, one for each network; none for
     * {@link #reachableHost} and the operating system's routing.
     */
    public List<String> dataHosts() {
        return dataHosts;
    }

    public TransferOptions withDataHosts(List<String> hosts) {
        return with(copy -> copy.dataHosts = List.copyOf(hosts));
    }

    /** Port that tcp data paths are accepted on; 0 for any free port. */
    public int dataPort() {
        return dataPort;
    }

    public TransferOptions withDataPort(int port) {
        return with(copy -> copy.dataPort = port);
    }

    /**
     * Ports that peers are told for tcp data paths: none for those that are listened on, one for all addresses, or one
     * for each of {@link #dataHosts}.
     */
    public List<Integer> advertiseDataPorts() {
        return advertiseDataPorts;
    }

    public TransferOptions withAdvertiseDataPorts(List<Integer> ports) {
        return with(copy -> copy.advertiseDataPorts = List.copyOf(ports));
    }

    /** Names of the transports offered and tried, fastest first. */
    public List<String> transports() {
        return transports;
    }

    public TransferOptions withTransports(String... names) {
        return with(copy -> copy.transports = List.of(names));
    }

    /** Data sockets to each tcp peer. */
    public int streamsPerPeer() {
        return streamsPerPeer;
    }

    public TransferOptions withStreamsPerPeer(int count) {
        return with(copy -> copy.streamsPerPeer = count);
    }

    /** Writes queued for or in flight to one peer; a power of two. Beyond it a submit returns back pressure. */
    public int requestsPerPeerMax() {
        return requestsPerPeerMax;
    }

    public TransferOptions withRequestsPerPeerMax(int count) {
        return with(copy -> copy.requestsPerPeerMax = count);
    }

    /** Limit on the time that one transport may take to reach a peer. */
    public long connectLimitNs() {
        return connectLimitNs;
    }

    public TransferOptions withConnectLimitNs(long limitNs) {
        return with(copy -> copy.connectLimitNs = limitNs);
    }

    /**
     * Limit on the time in which nothing comes from a peer over an idle socket, although both sides give heartbeats
     * there; an engine of mode {@link ThreadingMode#CALLER} gives them only while it is polled.
     */
    public long idleLimitNs() {
        return idleLimitNs;
    }

    public TransferOptions withIdleLimitNs(long limitNs) {
        return with(copy -> copy.idleLimitNs = limitNs);
    }

    /** Whether tcp sockets are encrypted and authenticated; must be the same on both sides. */
    public boolean sealTcp() {
        return sealTcp;
    }

    public TransferOptions withSealTcp(boolean sealed) {
        return with(copy -> copy.sealTcp = sealed);
    }

    /** Which thread moves the bytes. */
    public ThreadingMode threading() {
        return threading;
    }

    public TransferOptions withThreading(ThreadingMode chosen) {
        return with(copy -> copy.threading = chosen);
    }

    /** Number of workers that peers are spread over; each moves the bytes of its own peers. */
    public int workers() {
        return workers;
    }

    public TransferOptions withWorkers(int count) {
        return with(copy -> copy.workers = count);
    }

    /** Libfabric's library and provider, if it is one of the transports. */
    public FabricChoice fabric() {
        return fabric;
    }

    public TransferOptions withFabric(FabricChoice choice) {
        return with(copy -> copy.fabric = choice);
    }

    /**
     * The RDMA devices that verbs uses, one for each network; none for the one that has the advertised address, or the
     * first.
     */
    public List<String> verbsDevices() {
        return verbsDevices;
    }

    public TransferOptions withVerbsDevices(String... names) {
        return with(copy -> copy.verbsDevices = List.of(names));
    }

    /** Whether NICs access device memory directly, where driver and NIC support it. */
    public boolean dmaBuf() {
        return dmaBuf;
    }

    public TransferOptions withDmaBuf(boolean wanted) {
        return with(copy -> copy.dmaBuf = wanted);
    }

    /** NVIDIA's driver, used when device memory is registered: its path, or a name for the loader. */
    public String cudaLibrary() {
        return cudaLibrary;
    }

    public TransferOptions withCudaLibrary(String library) {
        return with(copy -> copy.cudaLibrary = library);
    }

    /** The address or name that peers are told. */
    public String reachableHost() {
        return advertiseHost.isEmpty() ? listenHost : advertiseHost;
    }

    /** The same, given the address that is listened on. */
    public String reachableHost(InetAddress listening) {
        return advertiseHost.isEmpty() ? listening.getHostAddress() : advertiseHost;
    }

    /** The port that peers are told for the listener of data paths; 0 for the one that is listened on. */
    public int reachableDataPort() {
        int index = Math.max(0, dataHosts.indexOf(reachableHost()));
        return advertiseDataPorts.isEmpty()
                ? 0
                : advertiseDataPorts.get(Math.min(index, advertiseDataPorts.size() - 1));
    }

    /** The port that peers are told for each of {@code dataHosts}; empty for those that are listened on. */
    public List<Integer> reachableDataPorts() {
        return advertiseDataPorts.size() == 1
                ? Collections.nCopies(dataHosts.size(), advertiseDataPorts.getFirst())
                : advertiseDataPorts;
    }

    private TransferOptions with(Consumer<TransferOptions> change) {
        try {
            TransferOptions copy = (TransferOptions) clone();
            change.accept(copy);
            copy.check();
            return copy;
        } catch (CloneNotSupportedException e) {
            throw new AssertionError(e);
        }
    }

    private void check() {
        require(
                dataHosts.size() <= DATA_HOSTS_MAX && Set.copyOf(dataHosts).size() == dataHosts.size(),
                "data_hosts",
                dataHosts,
                "at most " + DATA_HOSTS_MAX + " addresses, each once");
        require(
                verbsDevices.size() <= DATA_HOSTS_MAX
                        && Set.copyOf(verbsDevices).size() == verbsDevices.size(),
                "verbs_devices",
                verbsDevices,
                "at most " + DATA_HOSTS_MAX + " devices, each once");
        require(
                advertiseDataPorts.size() <= 1 || advertiseDataPorts.size() == dataHosts.size(),
                "advertise_data_ports",
                advertiseDataPorts,
                "one port, or one for each of data_hosts");
        require(
                advertiseDataPorts.stream().allMatch(port -> port > 0 && port <= PORT_MAX),
                "advertise_data_ports",
                advertiseDataPorts,
                "ports from 1 to " + PORT_MAX);
        require(dataPort >= 0 && dataPort <= PORT_MAX, "data_port", dataPort, "0 to " + PORT_MAX);
        for (String transport : transports) {
            require(KNOWN.contains(transport), "transports", transport, "each one of cuda, libfabric, shm, tcp, verbs");
        }
        require(!transports.isEmpty(), "transports", transports, "at least one of cuda, libfabric, shm, tcp, verbs");
        require(
                streamsPerPeer >= 1 && streamsPerPeer <= STREAMS_PER_PEER_MAX,
                "streams_per_peer",
                streamsPerPeer,
                "1 to " + STREAMS_PER_PEER_MAX);
        require(
                Integer.bitCount(requestsPerPeerMax) == 1
                        && requestsPerPeerMax >= 2
                        && requestsPerPeerMax <= REQUESTS_PER_PEER_MAX,
                "requestsPerPeerMax",
                requestsPerPeerMax,
                "a power of two, 2 to " + REQUESTS_PER_PEER_MAX);
        require(workers >= 1 && workers <= WORKERS_MAX, "transfer_workers", workers, "1 to " + WORKERS_MAX);
        require(idleLimitNs > 0, "idleLimitNs", idleLimitNs, "more than 0");
        require(connectLimitNs > 0, "connectLimitNs", connectLimitNs, "more than 0");
    }

    /** The number of workers that suits a machine with this many cores. */
    public static int workersForCores(int coreCount) {
        return Math.clamp(coreCount / CORES_PER_WORKER, 1, WORKERS_CHOSEN_MAX);
    }

    private static void require(boolean holds, String option, Object seen, String expected) {
        if (!holds) {
            throw new IllegalArgumentException(
                    "option " + option + " is " + seen + ", expected " + expected + "; change it and open again");
        }
    }
}
