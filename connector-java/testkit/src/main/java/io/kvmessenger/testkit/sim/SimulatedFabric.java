package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.SimulatedTransferEngine.Admitted;
import io.kvmessenger.testkit.sim.SimulatedTransferEngine.OutboundPeer;
import io.kvmessenger.testkit.sim.check.PageWrite;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.WindowArea;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.SplittableRandom;

/**
 * Carries pages between simulated processes: in any order, as late as it likes, a page in two halves, and its immediate
 * last. Paths are lost, cut and torn down here; what completion and refusal mean is the {@link FabricKind}'s.
 */
final class SimulatedFabric {
    private static final long HOP_NS = 20 * Scenario.MICRO;
    /** After that long without an answer an RDMA queue pair gives up. */
    private static final long RETRIES_EXHAUSTED_NS = 20 * Scenario.MILLI;

    private static final int DAMAGED_WRITES_INTERVAL = 200;

    private final SimulatedClock clock;
    private final Trace trace;
    private final FabricKind kind;
    private final Swarm swarm;
    private final int queueLimit;
    private final SplittableRandom random;
    private final WorldListener listener;
    private final Partitions partitions;
    private final boolean damages;
    private final Map<String, SimulatedTransferEngine> byProcess = new LinkedHashMap<>();
    private final Set<FabricWrite> inFlight = new LinkedHashSet<>();
    private final List<FabricPath> silent = new ArrayList<>();
    private long lastWriteId;
    private boolean healed;

    SimulatedFabric(
            SimulatedClock clock,
            Trace trace,
            Scenario scenario,
            SplittableRandom random,
            WorldListener listener,
            Partitions partitions,
            boolean damages) {
        this.clock = clock;
        this.trace = trace;
        this.kind = scenario.fabric();
        this.swarm = scenario.swarm();
        this.queueLimit = scenario.queueLimit();
        this.random = random;
        this.listener = listener;
        this.partitions = partitions;
        this.damages = damages;
    }

    WorldListener listener() {
        return listener;
    }

    long nextWriteId() {
        return ++lastWriteId;
    }

    byte[] drawKey() {
        byte[] key = new byte[16];
        random.nextBytes(key);
        return key;
    }

    void started(SimulatedTransferEngine engine) {
        byProcess.put(engine.node.process(), engine);
    }

    void heal() {
        healed = true;
    }

    boolean backPressures(OutboundPeer peer) {
        return peer.batches.size() >= queueLimit || (!healed && random.nextDouble() < swarm.backPressure() * 0.3);
    }

    // ---- paths

    void connect(SimulatedTransferEngine source, OutboundPeer peer, String location, byte[] key) {
        clock.after(delayNs(), () -> whenConnected(source, location, () -> accept(source, peer, location, key)));
    }

    private void accept(SimulatedTransferEngine source, OutboundPeer peer, String location, byte[] key) {
        SimulatedTransferEngine target = byProcess.get(location);
        if (!source.node.alive() || peer.lost || !source.peers().contains(peer)) {
            return;
        }
        Admitted admitted = target == null || !target.node.alive() ? null : target.admittedBy(key);
        if (admitted == null) {
            TransferFault fault =
                    target == null || !target.node.alive() ? TransferFault.UNREACHABLE : TransferFault.NOT_ADMITTED;
            peer.lost = true;
            clock.after(delayNs(), () -> tellLost(source, peer, fault, "no data path to " + location));
            return;
        }
        FabricPath path = new FabricPath(source, target, peer, admitted);
        peer.path = path;
        admitted.paths.add(path);
        clock.after(delayNs(), () -> {
            if (!path.sourceGone && !peer.lost) {
                peer.ready = true;
                trace.add(source.node.process(), "path", "ready to " + location);
                source.tell(handler -> handler.onPeerReady(peer));
            }
        });
    }

    private void tellLost(SimulatedTransferEngine source, OutboundPeer peer, TransferFault fault, String detail) {
        if (source.peers().contains(peer)) {
            source.tell(handler -> {
                source.forget(peer);
                handler.onPeerLost(peer, fault, detail);
            });
        }
    }

    void disconnect(SimulatedTransferEngine source, OutboundPeer peer) {
        endSource(source, peer, TransferFault.DISCONNECTED, "disconnected by this engine", false);
        if (peer.path != null) {
            clock.after(
                    delayNs(),
                    () -> whenConnected(
                            source,
                            peer.path.target.node.process(),
                            () -> endTarget(peer.path, "the peer disconnected")));
        }
    }

    void revoke(SimulatedTransferEngine target, Admitted admitted) {
        trace.add(target.node.process(), "revoke", admitted.admission.peerName());
        clock.after(HOP_NS, () -> {
            if (admitted.paths.isEmpty()) {
                target.tellAdmissionClosed(admitted, "revoked");
            }
            for (FabricPath path : List.copyOf(admitted.paths)) {
                if (kind.writerCopies() && path.source.node.alive()) {
                    path.source.node.whenRunning(() -> {
                        endSource(path.source, path.peer, TransferFault.PEER_CLOSED, "revoked by the peer", true);
                        clock.after(HOP_NS, () -> endTarget(path, "revoked"));
                    });
                } else {
                    endTarget(path, "revoked");
                    clock.after(
                            delayNs(),
                            () -> whenConnected(
                                    path.target,
                                    path.source.node.process(),
                                    () -> endSource(
                                            path.source,
                                            path.peer,
                                            TransferFault.PEER_CLOSED,
                                            "closed by the peer",
                                            true)));
                }
            }
        });
    }

    /** A fault: some open path breaks; each end learns it in its own time. */
    void breakAnyPath() {
        List<FabricPath> open = byProcess.values().stream()
                .filter(engine -> engine.node.alive())
                .flatMap(engine -> engine.peers().stream())
                .filter(peer -> peer.ready && !peer.lost)
                .map(peer -> peer.path)
                .toList();
        if (open.isEmpty()) {
            return;
        }
        FabricPath path = open.get(random.nextInt(open.size()));
        trace.add(path.source.node.process(), "pathLoss", "to " + path.target.node.process());
        clock.after(
                delayNs(),
                () -> path.source.node.whenRunning(
                        () -> endSource(path.source, path.peer, TransferFault.PEER_CLOSED, "the path broke", true)));
        clock.after(delayNs(), () -> {
            if (kind.writerCopies()) {
                path.source.node.whenRunning(() -> endTarget(path, "the path broke"));
            } else {
                endTarget(path, "the path broke");
            }
        });
    }

    /** The process is dead. A silent death is that of its machine: nobody tells its peers. */
    void died(SimulatedTransferEngine engine, boolean silentDeath) {
        boolean heard = kind.writerCopies() || !silentDeath;
        for (OutboundPeer peer : engine.peers()) {
            endSource(engine, peer, TransferFault.DISCONNECTED, "the process died", false);
            if (peer.path != null) {
                tellOtherEnd(heard, peer.path, () -> endTarget(peer.path, "the peer died"));
            }
        }
        for (Admitted admitted : engine.admitted()) {
            for (FabricPath path : List.copyOf(admitted.paths)) {
                path.targetGone = true;
                dropAll(path);
                tellOtherEnd(
                        heard,
                        path,
                        () -> endSource(path.source, path.peer, TransferFault.PEER_CLOSED, "the peer died", true));
            }
        }
    }

    private void tellOtherEnd(boolean heard, FabricPath path, Runnable end) {
        if (heard) {
            clock.after(delayNs(), () -> whenConnected(path.source, path.target.node.process(), end));
        } else {
            silent.add(path);
            if (kind == FabricKind.RDMA && path.targetGone) {
                clock.after(RETRIES_EXHAUSTED_NS, end);
            }
        }
    }

    /** A machine that died silently is back: what still belongs to its old life is reset. */
    void restarted(String nodeName) {
        for (FabricPath path : List.copyOf(silent)) {
            boolean sourceDied = path.source.node.name().equals(nodeName);
            if (sourceDied || path.target.node.name().equals(nodeName)) {
                silent.remove(path);
                clock.after(delayNs(), () -> {
                    endTarget(path, "the peer restarted");
                    endSource(path.source, path.peer, TransferFault.PEER_CLOSED, "the peer restarted", true);
                });
            }
        }
    }

    private void endSource(
            SimulatedTransferEngine source, OutboundPeer peer, TransferFault fault, String detail, boolean tell) {
        if (peer.lost || (tell && !source.node.alive())) {
            return;
        }
        peer.lost = true;
        boolean lostFirst = random.nextBoolean();
        if (tell && lostFirst) {
            tellLost(source, peer, fault, detail);
        }
        for (FabricWrite.Batch batch : List.copyOf(peer.batches)) {
            peer.batches.remove(batch);
            batch.ended = true;
            source.tell(handler -> handler.onWriteFailed(batch.cookie, fault, detail));
        }
        if (tell && !lostFirst) {
            tellLost(source, peer, fault, detail);
        }
        if (peer.path != null && !peer.path.sourceGone) {
            peer.path.sourceGone = true;
            for (FabricWrite write : List.copyOf(inFlight)) {
                // What has left the source may land for as long as the target has the path.
                boolean stays = write.payload != null && !kind.writerCopies() && random.nextInt(4) > 0;
                if (write.path() == peer.path && !stays) {
                    gone(write);
                }
            }
        }
    }

    private void endTarget(FabricPath path, String detail) {
        if (!path.targetGone) {
            path.targetGone = true;
            dropAll(path);
            path.admitted.paths.remove(path);
            if (path.admitted.paths.isEmpty()) {
                path.target.tellAdmissionClosed(path.admitted, detail);
            }
        }
    }

    private void dropAll(FabricPath path) {
        for (FabricWrite write : List.copyOf(inFlight)) {
            if (write.path() == path && (write.payload != null || path.sourceGone)) {
                gone(write);
            }
        }
    }

    // ---- writes

    void post(FabricWrite write) {
        inFlight.add(write);
        FabricPath path = write.path();
        SimulatedWindows.Window window = path.target.windows.find(path.admitted, write.facts.imm());
        if (window != null) {
            window.posted += Imm.weight(write.facts.imm());
        }
        trace.add(write.facts.source(), "submit", describe(write));
        listener.writeSubmitted(write.facts);
        clock.after(delayNs(), () -> read(write));
    }

    private void read(FabricWrite write) {
        SimulatedNode source = write.path().source.node;
        if (write.gone) {
            return;
        }
        if (kind != FabricKind.RDMA && source.paused()) {
            source.whenRunning(() -> read(write));
            return;
        }
        if (kind == FabricKind.RDMA && cut(write)) {
            whenConnected(write.path().source, write.facts.target(), () -> read(write));
            return;
        }
        PageWrite facts = write.facts;
        write.payload = write.sourceRegion
                .memory()
                .asSlice(facts.sourceOffset(), facts.lengthBytes())
                .toArray(ValueLayout.JAVA_BYTE);
        if (damages && random.nextInt(DAMAGED_WRITES_INTERVAL) == 0) {
            write.payload[random.nextInt(write.payload.length)] ^= (byte) (1 << random.nextInt(Byte.SIZE));
        }
        listener.sourceRead(facts);
        if (!kind.completionIsDelivery) {
            finished(write);
        }
        clock.after(delayNs(), () -> land(write));
    }

    private void land(FabricWrite write) {
        FabricPath path = write.path();
        if (write.gone) {
            return;
        }
        if (path.targetGone || !path.target.node.alive()) {
            gone(write);
        } else if (!kind.writerCopies() && cut(write)) {
            whenConnected(path.source, write.facts.target(), () -> land(write));
        } else if (kind.writerCopies() && path.source.node.paused()) {
            path.source.node.whenRunning(() -> land(write));
        } else if (kind.targetChecks && path.target.node.paused()) {
            path.target.node.whenRunning(() -> land(write));
        } else {
            landPart(write);
        }
    }

    private void landPart(FabricWrite write) {
        PageWrite facts = write.facts;
        if (write.passedBytes == facts.lengthBytes()) {
            count(write);
            return;
        }
        if (kind.targetChecks && !write.discarded && !mayLand(write)) {
            return;
        }
        int from = write.passedBytes;
        int to = from == 0 && facts.lengthBytes() > 1 ? facts.lengthBytes() / 2 : facts.lengthBytes();
        if (!write.discarded) {
            MemorySegment.copy(
                    write.payload,
                    from,
                    write.path().target.region(write.targetRegionId).memory(),
                    ValueLayout.JAVA_BYTE,
                    facts.targetOffset() + from,
                    to - from);
            trace.add(facts.target(), "land", describe(write) + " bytes " + from + ".." + to);
            listener.landed(facts, from, to);
        }
        write.passedBytes = to;
        clock.after(random.nextInt(3) == 0 ? delayNs() : 0, () -> land(write));
    }

    /** What a target that looks at writes does: a stale one is discarded, one that leaves its window ends the path. */
    private boolean mayLand(FabricWrite write) {
        FabricPath path = write.path();
        SimulatedWindows.Window window = path.target.windows.find(path.admitted, write.facts.imm());
        if (window == null) {
            write.discarded = true;
        } else if (!covers(window.area, write)) {
            listener.writeRefused(write.facts.target(), describe(write) + " leaves its window");
            path.target.tell(handler -> handler.onWriteRefused(path.admitted.admission, describe(write)));
            gone(write);
            endTarget(path, "refused a write");
            return false;
        }
        return true;
    }

    private static boolean covers(WindowArea area, FabricWrite write) {
        int part = area.partIndexOf(write.targetRegionId);
        return part >= 0
                && area.parts().get(part).ranges().contains(write.facts.targetOffset(), write.facts.lengthBytes());
    }

    private void count(FabricWrite write) {
        FabricPath path = write.path();
        if (path.target.node.paused()) {
            path.target.node.whenRunning(() -> land(write));
            return;
        }
        SimulatedWindows.Window window =
                write.discarded ? null : path.target.windows.find(path.admitted, write.facts.imm());
        if (window == null) {
            trace.add(write.facts.target(), "stray", describe(write));
        } else {
            listener.counted(write.facts);
            trace.add(write.facts.target(), "count", describe(write));
            count(path.target, window, Imm.weight(write.facts.imm()));
        }
        if (kind.completionIsDelivery) {
            finished(write);
        }
        gone(write);
    }

    private static void count(SimulatedTransferEngine target, SimulatedWindows.Window window, int weight) {
        window.arrived += weight;
        if (window.arrived == window.expected) {
            target.tell(handler -> {
                if (!window.closed) {
                    handler.onWindowFilled(window.cookie);
                }
            });
        } else if (window.arrived > window.expected && !window.overshot) {
            window.overshot = true;
            target.tell(handler -> {
                if (!window.closed) {
                    handler.onWindowOvershot(window.cookie, window.arrived, window.expected);
                }
            });
        }
    }

    /** The source may be reused as far as this page is concerned. */
    private void finished(FabricWrite write) {
        FabricWrite.Batch batch = write.batch;
        if (--batch.unfinished == 0 && !batch.ended) {
            batch.ended = true;
            batch.path.peer.batches.remove(batch);
            batch.path.source.tell(handler -> handler.onWriteCompleted(batch.cookie));
        }
    }

    private void gone(FabricWrite write) {
        if (!write.gone) {
            write.gone = true;
            inFlight.remove(write);
            listener.writeGone(write.facts);
        }
    }

    // ---- time and reach

    private boolean cut(FabricWrite write) {
        return partitions.dataCut(
                write.path().source.node.name(), write.path().target.node.name());
    }

    /** Runs now, or once the two can reach each other again. */
    private void whenConnected(SimulatedTransferEngine one, String otherProcess, Runnable action) {
        SimulatedTransferEngine other = byProcess.get(otherProcess);
        if (other == null || kind.writerCopies()) {
            action.run();
        } else {
            partitions.whenDataConnected(one.node.name(), other.node.name(), action);
        }
    }

    private long delayNs() {
        if (!healed && random.nextDouble() < swarm.slowFabric() * 0.1) {
            return random.nextLong(20 * Scenario.MILLI);
        }
        return HOP_NS + random.nextLong(300 * Scenario.MICRO);
    }

    private static String describe(FabricWrite write) {
        PageWrite w = write.facts;
        return "#" + w.id() + " imm " + Integer.toHexString(w.imm()) + " " + w.source() + "+" + w.sourceOffset()
                + " -> " + w.target() + "+" + w.targetOffset();
    }

    /** A shuffled copy, for choices that should not depend on insertion order. */
    static <T> List<T> shuffled(List<T> items, SplittableRandom random) {
        List<T> copy = new ArrayList<>(items);
        Collections.shuffle(copy, new Random(random.nextLong()));
        return copy;
    }
}
