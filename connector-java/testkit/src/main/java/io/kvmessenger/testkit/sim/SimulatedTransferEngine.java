package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.PageWrite;
import io.kvmessenger.testkit.sim.check.WorldListener.FabricHoldings;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

/** One process's end of the {@link SimulatedFabric}: the contract of {@link TransferEngine}, kept to the letter. */
final class SimulatedTransferEngine implements TransferEngine {
    /** A peer that this process writes to. */
    static final class OutboundPeer implements Peer {
        final int id;
        final String name;
        final Map<Integer, WindowArea> allowances = new LinkedHashMap<>();
        final Set<FabricWrite.Batch> batches = new LinkedHashSet<>();
        FabricPath path;
        boolean ready;
        boolean lost;

        OutboundPeer(int id, String name) {
            this.id = id;
            this.name = name;
        }

        @Override
        public int id() {
            return id;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public String transport() {
            return ready ? "simulated" : "";
        }
    }

    /** A peer that may write to this process. */
    static final class Admitted {
        final Admission admission;
        final List<FabricPath> paths = new ArrayList<>();
        boolean closing;
        boolean closed;

        Admitted(Admission admission) {
            this.admission = admission;
        }
    }

    private record SimulatedRegion(RegionDescriptor descriptor, MemorySegment memory) implements Region {
        @Override
        public void deregister() {}
    }

    final SimulatedNode node;
    final SimulatedWindows windows;
    private final SimulatedFabric fabric;
    private final ArrayDeque<Consumer<CompletionHandler>> completions = new ArrayDeque<>();
    private final Map<Integer, Admitted> admitted = new LinkedHashMap<>();
    private final Set<OutboundPeer> peers = new LinkedHashSet<>();
    private final Map<Integer, Region> regions = new LinkedHashMap<>();
    private int lastId;
    private String refusal = "";

    SimulatedTransferEngine(SimulatedNode node, SimulatedFabric fabric, SimulatedWindows windows) {
        this.node = node;
        this.fabric = fabric;
        this.windows = windows;
    }

    // ---- the contract

    @Override
    public EngineAddress address() {
        return new EngineAddress(List.of(new TransportAddress("simulated", node.process())));
    }

    @Override
    public Region register(MemorySegment memory, int memfd) {
        RegionDescriptor descriptor =
                new RegionDescriptor(++lastId, memory.byteSize(), RegionDescriptor.VERSION, memfd >= 0);
        Region region = new SimulatedRegion(descriptor, memory);
        regions.put(descriptor.regionId(), region);
        return region;
    }

    @Override
    public Admission admit(String peerName) {
        Admission admission = new Admission(++lastId, peerName, fabric.drawKey());
        admitted.put(admission.id(), new Admitted(admission));
        return admission;
    }

    @Override
    public void revoke(Admission admission) {
        Admitted entry = admitted.get(admission.id());
        if (entry != null && !entry.closing) {
            entry.closing = true;
            fabric.revoke(this, entry);
        }
    }

    @Override
    public Peer connect(EngineAddress address, byte[] admissionKey, String peerName) {
        OutboundPeer peer = new OutboundPeer(++lastId, peerName);
        peers.add(peer);
        fabric.connect(this, peer, address.transports().getFirst().location(), admissionKey);
        return peer;
    }

    @Override
    public void disconnect(Peer peer) {
        OutboundPeer outbound = (OutboundPeer) peer;
        if (peers.remove(outbound)) {
            fabric.disconnect(this, outbound);
        }
    }

    @Override
    public void allow(Peer peer, int imm, WindowArea area) {
        ((OutboundPeer) peer).allowances.put(imm, area);
    }

    @Override
    public void disallow(Peer peer, int imm) {
        ((OutboundPeer) peer).allowances.remove(imm);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        OutboundPeer outbound = (OutboundPeer) peer;
        if (outbound.lost || !peers.contains(outbound)) {
            return PEER_LOST;
        }
        if (!outbound.ready || fabric.backPressures(outbound)) {
            return BACK_PRESSURE;
        }
        if (!(request instanceof PagedWrites writes)) {
            throw new UnsupportedOperationException("the simulated fabric carries paged writes only, got " + request);
        }
        refusal = reasonToRefuse(outbound, writes);
        if (!refusal.isEmpty()) {
            fabric.listener().writeRefused(node.process(), refusal);
            return REFUSED;
        }
        FabricWrite.Batch batch = new FabricWrite.Batch(
                outbound.path, cookie, writes.sourcePages().count());
        outbound.batches.add(batch);
        for (int i = 0; i < batch.unfinished; i++) {
            PageWrite facts = new PageWrite(
                    fabric.nextWriteId(),
                    node.process(),
                    outbound.path.target.node.process(),
                    writes.imm(),
                    rankOf(writes.source().descriptor().regionId()),
                    writes.sourcePages().offsetOf(i),
                    outbound.path.target.rankOf(writes.target().regionId()),
                    writes.targetPages().offsetOf(i),
                    writes.pageBytes());
            fabric.post(new FabricWrite(
                    facts, batch, writes.source(), writes.target().regionId()));
        }
        return ACCEPTED;
    }

    private static String reasonToRefuse(OutboundPeer peer, PagedWrites writes) {
        WindowArea area = peer.allowances.get(Imm.of(Imm.slot(writes.imm()), Imm.generation(writes.imm())));
        int part = area == null ? -1 : area.partIndexOf(writes.target().regionId());
        if (part < 0) {
            return "imm " + Integer.toHexString(writes.imm()) + " is not allowed to " + peer.name;
        }
        for (int i = 0; i < writes.targetPages().count(); i++) {
            long target = writes.targetPages().offsetOf(i);
            long source = writes.sourcePages().offsetOf(i);
            if (!area.parts().get(part).ranges().contains(target, writes.pageBytes())) {
                return "target offset " + target + " is outside what " + peer.name + " allowed";
            }
            if (!writes.source().descriptor().contains(source, writes.pageBytes())) {
                return "source offset " + source + " is outside the region";
            }
        }
        return "";
    }

    @Override
    public String refusal() {
        return refusal;
    }

    @Override
    public int send(Peer peer, MemorySegment message) {
        throw new UnsupportedOperationException("the messenger sends no messages over the fabric");
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        Admitted entry = admitted.get(from.id());
        if (entry == null || expectedWeight < 1) {
            throw new IllegalArgumentException("window of weight " + expectedWeight + " for " + from.peerName()
                    + (entry == null ? ", whose admission has ended" : ""));
        }
        return windows.open(entry, area, expectedWeight, cookie);
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        int count = 0;
        while (count < limit && !completions.isEmpty()) {
            completions.removeFirst().accept(handler);
            count++;
        }
        return count;
    }

    @Override
    public void await(long limitNs) {
        throw new AssertionError("only a thread waits, and there is none here");
    }

    @Override
    public void wake() {
        throw new AssertionError("nobody waits");
    }

    @Override
    public TransferCounters counters() {
        throw new UnsupportedOperationException("the messenger reads no counters");
    }

    @Override
    public void close() {
        peers.forEach(peer -> fabric.disconnect(this, peer));
        peers.clear();
    }

    // ---- for the fabric

    void tell(Consumer<CompletionHandler> completion) {
        completions.addLast(completion);
        node.wake();
    }

    /** The live admission with this key, or null. */
    Admitted admittedBy(byte[] key) {
        for (Admitted entry : admitted.values()) {
            if (!entry.closing && java.util.Arrays.equals(entry.admission.key(), key)) {
                return entry;
            }
        }
        return null;
    }

    /** To be polled: no path of the admission is left. */
    void tellAdmissionClosed(Admitted entry, String detail) {
        entry.closing = true;
        tell(handler -> {
            entry.closed = true;
            admitted.remove(entry.admission.id());
            windows.onAdmissionClosed(entry);
            handler.onAdmissionClosed(entry.admission, detail);
        });
    }

    void forget(OutboundPeer peer) {
        peers.remove(peer);
    }

    /** Each rank has registered one region, in their order. */
    private int rankOf(int regionId) {
        return List.copyOf(regions.keySet()).indexOf(regionId);
    }

    Region region(int regionId) {
        return regions.get(regionId);
    }

    List<OutboundPeer> peers() {
        return List.copyOf(peers);
    }

    List<Admitted> admitted() {
        return List.copyOf(admitted.values());
    }

    FabricHoldings holdings(int sessions) {
        int allowances = peers.stream().mapToInt(p -> p.allowances.size()).sum();
        int batches = peers.stream().mapToInt(p -> p.batches.size()).sum();
        return new FabricHoldings(windows.openCount(), allowances, batches, admitted.size(), peers.size(), sessions);
    }
}
