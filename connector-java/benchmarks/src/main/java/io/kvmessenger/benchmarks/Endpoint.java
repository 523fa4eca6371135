package io.kvmessenger.benchmarks;

import io.kvmessenger.benchmarks.ControlPipe.Hello;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.engine.TransferEngines;
import io.kvmessenger.transfer.libfabric.LibFabricTransport;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.stream.Stream;

/**
 * One side of the benchmark: an engine with one pool and a peer (or the same peer several times), and the completions
 * that it has recorded.
 *
 * <p>For one thread, which must be the one that opened it. A fault ends the run, as there is nothing to measure then.
 */
final class Endpoint implements CompletionHandler, AutoCloseable {
    private static final int POLL_LIMIT = 256;
    /** Longest single wait, so that limits are checked. */
    private static final long AWAIT_NS = 100_000_000;
    /** Longest delay until events from outside the engine are noticed. */
    private static final long OTHER_WAIT_NS = 1_000_000;

    private final TransferEngine engine;
    private final PagePool pool;
    private final Region region;
    private final List<Admission> admissions;
    private final String peerName;
    private final TrafficClass trafficClass;
    private List<Peer> peers = List.of();
    private RegionDescriptor peerRegion;
    private int readyCount;
    private String fault = "";

    private long[] submittedNs = new long[0];
    private long[] latenciesNs = new long[0];
    private int completedCount;
    private int filledCount;
    private long lastFilledNs;

    /** @param hosts of this side */
    Endpoint(KvPerfOptions options, List<String> hosts, String peerName) {
        this.peerName = peerName;
        trafficClass = options.trafficClass();
        engine = TransferEngines.open(engineOptions(options, hosts));
        pool = PagePool.allocate(options.poolBytes(), options.pageBytes());
        region = engine.register(pool.shared());
        admissions = Stream.generate(() -> engine.admit(peerName))
                .limit(options.peers())
                .toList();
    }

    private static TransferOptions engineOptions(KvPerfOptions options, List<String> hosts) {
        return TransferOptions.defaults()
                .withHosts(hosts.getFirst(), "")
                .with(TransferOptions.DATA_HOSTS, hosts.size() > 1 ? hosts : List.of())
                .withTransports(options.transport())
                .with(LibFabricTransport.PROVIDER, options.provider())
                .with(TcpTransport.STREAMS_PER_PEER, options.streams())
                .with(TransferOptions.THREADING, options.threading())
                .with(TransferOptions.WORKERS, options.workers());
    }

    /** One for each connection that the other side is to open. */
    List<Hello> hellos() {
        return admissions.stream()
                .map(admission -> new Hello(engine.address(), admission.key(), region.descriptor()))
                .toList();
    }

    void connect(List<Hello> remotes) {
        peerRegion = remotes.getFirst().region();
        peers = remotes.stream()
                .map(remote -> engine.connect(remote.address(), remote.admissionKey(), peerName))
                .toList();
        long startedNs = System.nanoTime();
        while (readyCount < peers.size()) {
            pollOnce(startedNs, "the data paths to the " + peerName);
        }
    }

    String transport() {
        return peers.getFirst().transport();
    }

    PagePool pool() {
        return pool;
    }

    Region region() {
        return region;
    }

    RegionDescriptor peerRegion() {
        return peerRegion;
    }

    /** Forgets what the last round completed. */
    void beginRound(int requestCount) {
        submittedNs = new long[requestCount];
        latenciesNs = new long[requestCount];
        completedCount = 0;
        filledCount = 0;
    }

    ImmWindow openWindow(int peer, WindowRanges ranges, long expectedWeight) {
        ImmWindow window =
                engine.openWindow(admissions.get(peer), WindowArea.of(region.descriptor(), ranges), expectedWeight, 0);
        if (window == null) {
            throw new IllegalStateException("all imm slots are in use");
        }
        return window;
    }

    RemoteWindow allow(int peer, int imm, WindowRanges ranges) {
        return engine.allow(peers.get(peer), imm, WindowArea.of(peerRegion, ranges), trafficClass);
    }

    void disallow(int peer, RemoteWindow window) {
        engine.disallow(peers.get(peer), window);
    }

    /** Submits to the next peer in rotation, unless its queue is full; the request's latency is measured from here. */
    boolean submit(TransferRequest request, int requestIndex) {
        submittedNs[requestIndex] = System.nanoTime();
        int result = engine.submit(peers.get(requestIndex % peers.size()), request, requestIndex);
        return switch (result) {
            case TransferEngine.ACCEPTED -> true;
            case TransferEngine.BACK_PRESSURE -> false;
            case TransferEngine.REFUSED -> throw new IllegalStateException("a write was refused: " + engine.refusal());
            default -> throw new IllegalStateException("the " + peerName + " is lost " + fault);
        };
    }

    /** Submits, retrying while the queue is full. */
    void submitSurely(TransferRequest request, int requestIndex) {
        long startedNs = System.nanoTime();
        while (!submit(request, requestIndex)) {
            pollOnce(startedNs, "a place in the queue to the " + peerName);
        }
    }

    void awaitCompleted(int count) {
        long startedNs = System.nanoTime();
        while (completedCount < count) {
            pollOnce(startedNs, "the completion of request " + completedCount);
        }
    }

    void awaitFilled(int count) {
        long startedNs = System.nanoTime();
        while (filledCount < count) {
            pollOnce(startedNs, "window " + filledCount + " to fill");
        }
    }

    int completedCount() {
        return completedCount;
    }

    /** When the last window was filled, on the clock that both processes share. */
    long lastFilledNs() {
        return lastFilledNs;
    }

    /** Time from submit to local completion, by request index. */
    long[] latenciesNs() {
        return latenciesNs;
    }

    void poll() {
        if (engine.poll(this, POLL_LIMIT) == 0) {
            engine.await(AWAIT_NS);
        }
        requireNoFault();
    }

    /** Lets the engine make progress while this thread waits for something else, briefly. */
    void doWork() {
        engine.poll(this, POLL_LIMIT);
        engine.await(OTHER_WAIT_NS);
        requireNoFault();
    }

    private void pollOnce(long startedNs, String awaited) {
        poll();
        if (System.nanoTime() - startedNs > ControlPipe.WAIT_LIMIT_NS) {
            throw new IllegalStateException(
                    "waited " + ControlPipe.WAIT_LIMIT_NS / 1_000_000_000 + " s for " + awaited);
        }
    }

    private void requireNoFault() {
        if (!fault.isEmpty()) {
            throw new IllegalStateException(fault);
        }
    }

    @Override
    public void close() {
        engine.close();
    }

    @Override
    public void onWriteCompleted(long cookie) {
        int requestIndex = (int) cookie;
        latenciesNs[requestIndex] = System.nanoTime() - submittedNs[requestIndex];
        completedCount++;
    }

    @Override
    public void onWindowFilled(long cookie) {
        lastFilledNs = System.nanoTime();
        filledCount++;
    }

    @Override
    public void onPeerReady(Peer ready) {
        readyCount++;
    }

    @Override
    public void onWriteFailed(long cookie, TransferFault writeFault, String detail) {
        fault = "request " + cookie + " failed: " + writeFault + ", " + detail;
    }

    @Override
    public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
        fault = arrivedWeight + " pages arrived in a window for " + expectedWeight;
    }

    @Override
    public void onPeerLost(Peer lost, TransferFault peerFault, String detail) {
        fault = "the " + peerName + " is lost: " + peerFault + ", " + detail;
    }

    @Override
    public void onAdmissionClosed(Admission closed, String detail) {
        fault = "the " + peerName + " closed its data paths: " + detail;
    }

    @Override
    public void onWriteRefused(Admission from, String detail) {
        fault = "a write of the " + peerName + " was refused: " + detail;
    }

    @Override
    public void onMessage(Admission from, MemorySegment message) {
        fault = "an unexpected message of " + message.byteSize() + " bytes";
    }
}
