package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.spi.Capabilities;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.KeyProof;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;

/**
 * One process's end of the {@link SimulatedFabric}, below the production engine. Work from the fabric is queued here
 * until the engine's worker runs; queued items are processed in random order.
 */
final class SimulatedTransport implements Domain {
    static final String NAME = "simulated";

    final SimulatedNode node;
    final InboundPort port;
    final Set<SimulatedOutboundLink> links = new LinkedHashSet<>();
    /** Paths of peers that write here. */
    final Set<FabricPath> inbound = new LinkedHashSet<>();
    /** Peers' links that wait to be accepted. */
    final Set<SimulatedOutboundLink> knocking = new LinkedHashSet<>();
    /** Links to peers that this process writes to. */
    final Set<FabricLink> opened = new LinkedHashSet<>();
    /** Links of peers that write here. */
    final Set<FabricLink> admitted = new LinkedHashSet<>();

    private final SimulatedFabric fabric;
    private final SimulatedWorker worker;
    private final SplittableRandom random;
    private final List<Runnable> tasks = new ArrayList<>();
    /** By rank, then by kind of context row. */
    private List<Region> regions = List.of();

    /** The memory of the regions, even if the engine takes it for a device's. */
    private List<MemorySegment> memories = List.of();

    /** For a mutant: by window, the weight that peers have posted for it, at any worker. */
    private final Map<Integer, Long> postedWeights = new LinkedHashMap<>();

    /** One for each worker of its engine. Peers address the first. */
    private List<SimulatedTransport> ofEngine = List.of(this);

    /** Null where no port fails. */
    private FailingPorts failing;

    private boolean closed;

    SimulatedTransport(
            SimulatedNode node,
            SimulatedFabric fabric,
            SimulatedWorker worker,
            InboundPort port,
            SplittableRandom random) {
        this.node = node;
        this.fabric = fabric;
        this.worker = worker;
        this.port = port;
        this.random = random;
    }

    /** Each rank has one region, and so has each kind of context row. */
    void use(List<Region> byRank, List<MemorySegment> bytes) {
        for (SimulatedTransport transport : ofEngine) {
            transport.regions = List.copyOf(byRank);
            transport.memories = List.copyOf(bytes);
        }
    }

    /** Sets the transports of all workers, of which this is the first. */
    void leads(List<SimulatedTransport> all) {
        all.forEach(transport -> transport.ofEngine = List.copyOf(all));
    }

    void fail(FailingPorts ports) {
        ofEngine.forEach(transport -> transport.failing = ports);
    }

    /** The transport of a driver that has met an error throws it. */
    void throwIfItFails() {
        if (failing != null) {
            failing.throwAt("post", failing.faults().postThrows());
        }
    }

    Map<Integer, Long> postedWeights() {
        return ofEngine.getFirst().postedWeights;
    }

    List<SimulatedTransport> ofEngine() {
        return ofEngine;
    }

    /** The transport of the worker whose admission has this key; the first if none has it. */
    SimulatedTransport admitting(byte[] key) {
        return ofEngine.stream()
                .filter(transport -> transport.port.admissionOf(KeyProof.nameOf(key)) != null)
                .findFirst()
                .orElse(this);
    }

    boolean looksAtWrites() {
        return fabric.looksAtWrites();
    }

    boolean isClosed() {
        return closed;
    }

    int rankOf(int regionId) {
        for (int rank = 0; rank < regions.size(); rank++) {
            if (regions.get(rank).descriptor().regionId() == regionId) {
                return rank;
            }
        }
        throw new AssertionError("region " + regionId + " is no rank's of " + node.process());
    }

    MemorySegment memoryOf(int regionId) {
        return memories.get(rankOf(regionId));
    }

    /** Runs in a later duty cycle of the worker; never, if the process dies before. */
    void run(Runnable task) {
        if (node.alive()) {
            tasks.add(task);
            worker.wake();
        }
    }

    void wakeWorker() {
        worker.wake();
    }

    /** Takes a message of the peer with this key; false without room for it now. An unproven peer's is dropped. */
    boolean take(byte[] key, MemorySegment message) {
        InboundAdmission from = port.admissionOf(KeyProof.nameOf(key));
        return from == null || port.onMessage(from, message);
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public String location() {
        return node.process();
    }

    @Override
    public RemoteKey register(Region region) {
        RegionDescriptor descriptor = region.descriptor();
        return new RemoteKey(descriptor.regionId(), descriptor.lengthBytes(), Memory.Host.NOT_SHAREABLE);
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String location, PathEvents events, long nowNs) {
        return attach((LinkChannel) channel, location, events, false);
    }

    OutboundPaths attachNext(OutboundChannel channel, String location, PathEvents events) {
        return attach((LinkChannel) channel, location, events, true);
    }

    private OutboundPaths attach(LinkChannel channel, String location, PathEvents events, boolean next) {
        SimulatedOutboundLink paths =
                new SimulatedOutboundLink(this, fabric, channel.link, next, events, random.split());
        channel.paths = paths;
        links.add(paths);
        fabric.connect(paths, location);
        return paths;
    }

    /** Not called: the fabric itself accepts peers, as there is no control socket. */
    @Override
    public InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        throw new AssertionError("no peer asks for simulated paths");
    }

    /** A broken lane is reopened as long as its link exists; with a second domain, possibly too late. */
    @Override
    public Capabilities capabilities() {
        Fall fall = fabric.shape().fall();
        return new Capabilities(Long.MAX_VALUE, true, fall.repairLimitNs(), fall.silenceLimitNs());
    }

    @Override
    public int poll(long nowNs) {
        int count = tasks.size();
        for (int i = 0; i < count; i++) {
            fabric.guard(tasks.remove(random.nextInt(tasks.size())));
        }
        return count;
    }

    @Override
    public void onWindowClosed(OpenWindow window) {
        fabric.onWindowClosed(this, window);
    }

    @Override
    public void close() {
        closed = true;
        List.copyOf(links).forEach(SimulatedOutboundLink::close);
        fabric.closeTargets(this);
        tasks.clear();
    }
}
