package io.kvmessenger.transfer;

import java.net.InetAddress;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Options for opening an engine.
 *
 * @param listenHost literal address or name that the engine listens on
 * @param advertiseHost the address or name that peers are told to connect to, which only they look up; empty for
 *     {@code listenHost}
 * @param dataHosts addresses of this machine that data sockets are offered on and dialled from, one for each network;
 *     empty for {@code advertiseHost} and the operating system's routing
 * @param dataPort port that tcp data paths are accepted on; 0 for any free port
 * @param advertiseDataPorts ports that peers are told for tcp data paths: none for those that are listened on, one for
 *     all addresses, or one for each of {@code dataHosts}
 * @param transports names of the transports offered and tried, fastest first
 * @param streamsPerPeer data sockets to each tcp peer
 * @param requestsPerPeerMax writes queued for or in flight to one peer; a power of two
 * @param connectLimitNs limit on the time that one transport may take to reach a peer
 * @param idleLimitNs limit on the time in which nothing comes from a peer over an idle socket, although both sides give
 *     heartbeats there; an engine of mode {@link ThreadingMode#CALLER} gives them only while it is polled
 * @param sealTcp whether tcp sockets are encrypted and authenticated; must be the same on both sides
 * @param threading which thread moves the bytes
 * @param workers number of workers that peers are spread over; each moves the bytes of its own peers
 * @param fabric libfabric's library and provider, if it is one of the transports
 * @param verbsDevices the RDMA devices that verbs uses, one for each network; empty for the one that has the advertised
 *     address, or the first
 * @param dmaBuf whether NICs access device memory directly, where driver and NIC support it
 * @param cudaLibrary NVIDIA's driver, used when device memory is registered: its path, or a name for the loader
 */
public record TransferOptions(
        String listenHost,
        String advertiseHost,
        List<String> dataHosts,
        int dataPort,
        List<Integer> advertiseDataPorts,
        List<String> transports,
        int streamsPerPeer,
        int requestsPerPeerMax,
        long connectLimitNs,
        long idleLimitNs,
        boolean sealTcp,
        ThreadingMode threading,
        int workers,
        FabricChoice fabric,
        List<String> verbsDevices,
        boolean dmaBuf,
        String cudaLibrary) {
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

    public TransferOptions {
        transports = List.copyOf(transports);
        dataHosts = List.copyOf(dataHosts);
        require(
                dataHosts.size() <= DATA_HOSTS_MAX && Set.copyOf(dataHosts).size() == dataHosts.size(),
                "data_hosts",
                dataHosts,
                "at most " + DATA_HOSTS_MAX + " addresses, each once");
        verbsDevices = List.copyOf(verbsDevices);
        require(
                verbsDevices.size() <= DATA_HOSTS_MAX
                        && Set.copyOf(verbsDevices).size() == verbsDevices.size(),
                "verbs_devices",
                verbsDevices,
                "at most " + DATA_HOSTS_MAX + " devices, each once");
        advertiseDataPorts = List.copyOf(advertiseDataPorts);
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

    /** Loopback, shared memory before tcp, one worker with a thread of its own. */
    public static TransferOptions defaults() {
        return new TransferOptions(
                "127.0.0.1",
                "",
                List.of(),
                0,
                List.of(),
                List.of(SHM, TCP),
                2,
                512,
                5_000_000_000L,
                IDLE_LIMIT_NS,
                false,
                ThreadingMode.OWN_THREAD,
                1,
                FabricChoice.installed(),
                List.of(),
                true,
                CUDA_LIBRARY);
    }

    /** Sets the listen address and the one that peers are told; if the latter is empty, the former is used. */
    public TransferOptions withHosts(String listen, String advertise) {
        return with(draft -> {
            draft.listenHost = listen;
            draft.advertiseHost = advertise;
        });
    }

    /** Sets several addresses of this machine, whose networks {@code tcp} uses in parallel. */
    public TransferOptions withDataHosts(List<String> hosts) {
        return with(draft -> draft.dataHosts = hosts);
    }

    /** Sets the port for data sockets; 0 is any free port. */
    public TransferOptions withDataPort(int port) {
        return with(draft -> draft.dataPort = port);
    }

    /** Sets the ports that peers are told for data sockets. */
    public TransferOptions withAdvertiseDataPorts(Integer... ports) {
        return with(draft -> draft.advertiseDataPorts = List.of(ports));
    }

    /** The address or name that peers are told, given the address that is listened on. */
    public String reachableHost(InetAddress listening) {
        return advertiseHost.isEmpty() ? listening.getHostAddress() : advertiseHost;
    }

    /** The port that peers are told for the listener of data paths; 0 for the one that is listened on. */
    public int reachableDataPort() {
        int index = Math.max(0, dataHosts.indexOf(advertiseHost.isEmpty() ? listenHost : advertiseHost));
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

    /** Sets the transports in order of preference. */
    public TransferOptions withTransports(String... names) {
        return with(draft -> draft.transports = List.of(names));
    }

    /** Sets the number of data sockets of {@code tcp} to each peer. */
    public TransferOptions withStreamsPerPeer(int count) {
        return with(draft -> draft.streamsPerPeer = count);
    }

    /** Sets the limit on requests in flight to one peer; beyond it a submit returns back pressure. */
    public TransferOptions withRequestsPerPeerMax(int count) {
        return with(draft -> draft.requestsPerPeerMax = count);
    }

    /** Sets the limit on each attempt to reach a peer. */
    public TransferOptions withConnectLimitNs(long limitNs) {
        return with(draft -> draft.connectLimitNs = limitNs);
    }

    /** Sets how long an idle socket may be without a heartbeat of its peer. */
    public TransferOptions withIdleLimitNs(long limitNs) {
        return with(draft -> draft.idleLimitNs = limitNs);
    }

    /** Sets whether {@code tcp} is encrypted; must be the same on both sides. */
    public TransferOptions withSealTcp(boolean sealed) {
        return with(draft -> draft.sealTcp = sealed);
    }

    /** Sets which thread moves the bytes. */
    public TransferOptions withThreading(ThreadingMode chosen) {
        return with(draft -> draft.threading = chosen);
    }

    /** Sets the number of workers that peers are spread over. */
    public TransferOptions withWorkers(int count) {
        return with(draft -> draft.workers = count);
    }

    /** Selects the libfabric library and provider. */
    public TransferOptions withFabric(FabricChoice choice) {
        return with(draft -> draft.fabric = choice);
    }

    public TransferOptions withVerbsDevices(String... names) {
        return with(draft -> draft.verbsDevices = List.of(names));
    }

    /** Sets whether NICs access device memory directly. */
    public TransferOptions withDmaBuf(boolean wanted) {
        return with(draft -> draft.dmaBuf = wanted);
    }

    public TransferOptions withCudaLibrary(String library) {
        return with(draft -> draft.cudaLibrary = library);
    }

    private TransferOptions with(Consumer<Draft> change) {
        Draft draft = new Draft(this);
        change.accept(draft);
        return draft.options();
    }

    /** Mutable copy of the options. */
    private static final class Draft {
        String listenHost;
        String advertiseHost;
        List<String> dataHosts;
        int dataPort;
        List<Integer> advertiseDataPorts;
        List<String> transports;
        int streamsPerPeer;
        int requestsPerPeerMax;
        long connectLimitNs;
        long idleLimitNs;
        boolean sealTcp;
        ThreadingMode threading;
        int workers;
        FabricChoice fabric;
        List<String> verbsDevices;
        boolean dmaBuf;
        String cudaLibrary;

        Draft(TransferOptions of) {
            listenHost = of.listenHost;
            advertiseHost = of.advertiseHost;
            dataHosts = of.dataHosts;
            dataPort = of.dataPort;
            advertiseDataPorts = of.advertiseDataPorts;
            transports = of.transports;
            streamsPerPeer = of.streamsPerPeer;
            requestsPerPeerMax = of.requestsPerPeerMax;
            connectLimitNs = of.connectLimitNs;
            idleLimitNs = of.idleLimitNs;
            sealTcp = of.sealTcp;
            threading = of.threading;
            workers = of.workers;
            fabric = of.fabric;
            verbsDevices = of.verbsDevices;
            dmaBuf = of.dmaBuf;
            cudaLibrary = of.cudaLibrary;
        }

        TransferOptions options() {
            return new TransferOptions(
                    listenHost,
                    advertiseHost,
                    dataHosts,
                    dataPort,
                    advertiseDataPorts,
                    transports,
                    streamsPerPeer,
                    requestsPerPeerMax,
                    connectLimitNs,
                    idleLimitNs,
                    sealTcp,
                    threading,
                    workers,
                    fabric,
                    verbsDevices,
                    dmaBuf,
                    cudaLibrary);
        }
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
