package io.kvmessenger.transfer;

import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/**
 * How an engine is to be opened.
 *
 * @param listenHost literal address or name that the engine listens on
 * @param advertiseHost what peers are told to connect to; empty for {@code listenHost}
 * @param dataHosts addresses of this machine that data sockets are offered on and dialled from, one for each network; empty for
 *     {@code advertiseHost} and whatever routing chooses
 * @param dataPort where tcp data paths are listened for; 0 for any free port
 * @param transports names of the transports offered and tried, fastest first
 * @param streamsPerPeer data sockets to each tcp peer
 * @param requestsPerPeerMax writes that wait for or are on their way to one peer; a power of two
 * @param connectLimitNs how long one transport may take to reach a peer
 * @param sealTcp whether what travels on tcp sockets is encrypted and protected from changes; both sides say the same
 * @param threading which thread moves the bytes
 * @param workers over so many the peers are spread; each moves the bytes of its own
 * @param fabric which libfabric is used, where that is one of the transports
 * @param verbsDevices the RDMA devices that verbs uses, one for each network; empty for the one that has the advertised address,
 *     or the first
 * @param dmaBuf whether NICs reach the memory of devices by themselves, where driver and NIC can
 * @param cudaLibrary NVIDIA's driver, where memory of a device is registered: its path, or a name that the loader looks for
 */
public record TransferOptions(
        String listenHost,
        String advertiseHost,
        List<String> dataHosts,
        int dataPort,
        List<String> transports,
        int streamsPerPeer,
        int requestsPerPeerMax,
        long connectLimitNs,
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
    /** What the loader finds where NVIDIA's driver is installed. */
    public static final String CUDA_LIBRARY = "libcuda.so.1";

    /** One worker moves the bytes of all streams to a peer: more of them move no more. */
    public static final int STREAMS_PER_PEER_MAX = 16;

    /** Each has a rate of its own in every peer. */
    public static final int DATA_HOSTS_MAX = 8;

    public static final int WORKERS_MAX = 16;
    /** A worker that is busy needs a core, and so does its peer's on the same host; most are for the engine. */
    private static final int CORES_PER_WORKER = 8;

    private static final int WORKERS_CHOSEN_MAX = 4;

    public static final int PORT_MAX = 65_535;
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
        require(connectLimitNs > 0, "connectLimitNs", connectLimitNs, "more than 0");
    }

    /** Loopback, shared memory before tcp, one worker with a thread of its own. */
    public static TransferOptions defaults() {
        return new TransferOptions(
                "127.0.0.1",
                "",
                List.of(),
                0,
                List.of(SHM, TCP),
                2,
                512,
                5_000_000_000L,
                false,
                ThreadingMode.OWN_THREAD,
                1,
                FabricChoice.installed(),
                List.of(),
                true,
                CUDA_LIBRARY);
    }

    /** Where the engine listens, and what peers are told; an empty second one is the first. */
    public TransferOptions withHosts(String listen, String advertise) {
        return with(draft -> {
            draft.listenHost = listen;
            draft.advertiseHost = advertise;
        });
    }

    /** Several addresses of this machine, whose networks data over {@code tcp} takes at once. */
    public TransferOptions withDataHosts(List<String> hosts) {
        return with(draft -> draft.dataHosts = hosts);
    }

    /** Where data sockets are listened for; 0 is any free port. */
    public TransferOptions withDataPort(int port) {
        return with(draft -> draft.dataPort = port);
    }

    /** In the order of preference. */
    public TransferOptions withTransports(String... names) {
        return with(draft -> draft.transports = List.of(names));
    }

    /** Data sockets of {@code tcp} for each peer. */
    public TransferOptions withStreamsPerPeer(int count) {
        return with(draft -> draft.streamsPerPeer = count);
    }

    /** Requests to one peer under way; one more is back pressure. */
    public TransferOptions withRequestsPerPeerMax(int count) {
        return with(draft -> draft.requestsPerPeerMax = count);
    }

    /** How long each try to reach a peer may take. */
    public TransferOptions withConnectLimitNs(long limitNs) {
        return with(draft -> draft.connectLimitNs = limitNs);
    }

    /** Whether {@code tcp} is encrypted; both sides alike. */
    public TransferOptions withSealTcp(boolean sealed) {
        return with(draft -> draft.sealTcp = sealed);
    }

    /** Which thread moves the bytes. */
    public TransferOptions withThreading(ThreadingMode chosen) {
        return with(draft -> draft.threading = chosen);
    }

    /** Threads over which peers are spread. */
    public TransferOptions withWorkers(int count) {
        return with(draft -> draft.workers = count);
    }

    /** What of libfabric is used. */
    public TransferOptions withFabric(FabricChoice choice) {
        return with(draft -> draft.fabric = choice);
    }

    public TransferOptions withVerbsDevices(String... names) {
        return with(draft -> draft.verbsDevices = List.of(names));
    }

    /** Whether NICs reach devices' memory by themselves. */
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

    /** The options while some of them are changed. */
    private static final class Draft {
        String listenHost;
        String advertiseHost;
        List<String> dataHosts;
        int dataPort;
        List<String> transports;
        int streamsPerPeer;
        int requestsPerPeerMax;
        long connectLimitNs;
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
            transports = of.transports;
            streamsPerPeer = of.streamsPerPeer;
            requestsPerPeerMax = of.requestsPerPeerMax;
            connectLimitNs = of.connectLimitNs;
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
                    transports,
                    streamsPerPeer,
                    requestsPerPeerMax,
                    connectLimitNs,
                    sealTcp,
                    threading,
                    workers,
                    fabric,
                    verbsDevices,
                    dmaBuf,
                    cudaLibrary);
        }
    }

    /** How many workers suit a machine with so many cores. */
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
