package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.KeyProof;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.function.Consumer;

/**
 * Where data paths between simulated processes begin, break and end; each end notices at its own time, on the worker of
 * its engine. {@link FabricWrites} carries what is written on them.
 */
final class SimulatedFabric {
    static final long HOP_NS = 20 * Scenario.MICRO;
    /** Probability of a copy's failure in a run with the highest rate of lost paths. */
    private static final double COPY_FAULTS = 0.02;
    /** Time without an answer after which an RDMA queue pair gives up. */
    private static final long RETRIES_EXHAUSTED_NS = 20 * Scenario.MILLI;

    private final SimulatedClock clock;
    private final Trace trace;
    private final FabricShape shape;
    private final FabricKind kind;
    private final Swarm swarm;
    private final Mutation mutation;
    private final SplittableRandom random;
    private final Partitions partitions;
    private final FabricWrites writes;
    private final Map<String, SimulatedTransport> byProcess = new LinkedHashMap<>();
    private final List<FabricLink> silent = new ArrayList<>();
    private Throwable error;
    private boolean healed;

    SimulatedFabric(
            SimulatedClock clock,
            Trace trace,
            FabricShape shape,
            SplittableRandom random,
            WorldListener listener,
            Partitions partitions,
            Mutation mutation) {
        this.clock = clock;
        this.trace = trace;
        this.shape = shape;
        this.kind = shape.kind();
        this.swarm = shape.swarm();
        this.random = random;
        this.partitions = partitions;
        this.mutation = mutation;
        writes = new FabricWrites(this, clock, trace, kind, random, listener, mutation);
    }

    FabricShape shape() {
        return shape;
    }

    Mutation mutation() {
        return mutation;
    }

    void started(SimulatedTransport transport) {
        byProcess.put(transport.node.process(), transport);
    }

    void heal() {
        healed = true;
    }

    boolean isHealed() {
        return healed;
    }

    /** Records an exception of the action: an engine would take it for the end of a link. */
    void guard(Runnable action) {
        try {
            action.run();
        } catch (RuntimeException | Error e) {
            error = error == null ? e : error;
            throw e;
        }
    }

    void rethrow() {
        if (error instanceof RuntimeException e) {
            throw e;
        }
        if (error instanceof Error e) {
            throw e;
        }
    }

    boolean looksAtWrites() {
        return kind.targetChecks;
    }

    /** Whether a target counts a write only after the source was informed of its completion. */
    boolean countsAfterCompletion() {
        return kind.completionIsDelivery && !kind.writerCopies();
    }

    /** Whether a link has no room at the moment. */
    boolean backPressures() {
        return !healed && random.nextDouble() < swarm.backPressure() * 0.3;
    }

    /** Whether a device of this process fails the next copy. */
    boolean copyFails(SimulatedNode at) {
        boolean fails = !healed && random.nextDouble() < swarm.pathLoss() * COPY_FAULTS;
        if (fails) {
            trace.add(at.process(), "copyFault", "");
        }
        return fails;
    }

    /** Runs on the worker of an engine, after a delay. */
    void later(SimulatedTransport transport, Runnable action) {
        clock.after(delayNs(), () -> transport.run(action));
    }

    /** Runs when a broken lane may be opened again. */
    void afterRest(SimulatedOutboundLink link, Runnable action) {
        long restNs = link.next || shape.fall().restMaxNs() == 0
                ? 0
                : random.nextLong(shape.fall().restMaxNs());
        clock.after(delayNs() + restNs, () -> link.transport.run(action));
    }

    /** Runs on the worker there that has admitted the key, after a delay, once reachable; never, if there is none. */
    void laterAt(SimulatedTransport from, String location, byte[] key, Consumer<SimulatedTransport> action) {
        SimulatedTransport target = byProcess.get(location);
        if (target != null) {
            clock.after(delayNs(), () -> whenConnected(from, location, () -> run(target.admitting(key), action)));
        }
    }

    private static void run(SimulatedTransport target, Consumer<SimulatedTransport> action) {
        target.run(() -> action.accept(target));
    }

    void wakeLater(SimulatedTransport transport) {
        clock.after(delayNs(), transport::wakeWorker);
    }

    void post(FabricWrite.Post post, WriteBatch batch, int firstPage, int pages, int imm) {
        writes.post(post, batch, firstPage, pages, imm);
    }

    void postImmediate(FabricWrite.Post post, WriteBatch batch) {
        writes.postImmediate(post, batch);
    }

    // ---- paths

    void connect(SimulatedOutboundLink link, String location) {
        clock.after(delayNs(), () -> whenConnected(link.transport, location, () -> knock(link, location)));
    }

    private void knock(SimulatedOutboundLink link, String location) {
        SimulatedTransport first = byProcess.get(location);
        if (first == null || !first.node.alive() || first.isClosed()) {
            refuse(link, TransferFault.UNREACHABLE, location);
            return;
        }
        SimulatedTransport target = first.admitting(link.control.key);
        target.knocking.add(link);
        target.run(() -> {
            target.knocking.remove(link);
            letIn(link, target);
        });
    }

    private void letIn(SimulatedOutboundLink link, SimulatedTransport target) {
        if (link.isClosed() || !link.transport.node.alive()) {
            return;
        }
        FabricLink control = link.control;
        InboundAdmission admission = target.port.admissionOf(KeyProof.nameOf(control.key));
        if (admission == null
                || !Arrays.equals(admission.admission().key(), control.key)
                || !control.isAdmitted(target, admission)) {
            refuse(link, TransferFault.NOT_ADMITTED, target.node.process());
            return;
        }
        FabricPath path = new FabricPath(link, target, admission);
        link.path = path;
        target.inbound.add(path);
        control.paths.add(path);
        clock.after(
                delayNs(),
                () -> link.transport.run(() -> {
                    if (!path.sourceGone) {
                        String kindOfPath = link.next ? "nextPath" : "path";
                        trace.add(link.transport.node.process(), kindOfPath, "ready to " + target.node.process());
                        link.onReady();
                    }
                }));
    }

    private void refuse(SimulatedOutboundLink link, TransferFault fault, String location) {
        clock.after(delayNs(), () -> link.transport.run(() -> link.lose(fault, "no data path to " + location)));
    }

    /** The target ends a writer, on all its paths. */
    void revoke(FabricLink link, String detail) {
        trace.add(
                link.target.node.process(), "revoke", link.admission.admission().peerName());
        dismiss(link, TransferFault.PEER_CLOSED, detail, "revoked by the peer");
    }

    /** @param reported the reason that is sent to the writer */
    void dismiss(FabricLink link, TransferFault fault, String detail, String reported) {
        link.dismissed = true;
        if (!kind.writerCopies() || !link.source.node.alive()) { // else only the writer's confirmation or death ends it
            for (FabricPath path : List.copyOf(link.paths)) {
                if (kind.targetChecks) {
                    endTarget(path, detail);
                } else {
                    clock.after(
                            delayNs(), () -> path.target.run(() -> endTarget(path, detail))); // each at its own time
                }
            }
        }
        reportWriter(link, fault, reported);
        link.endIfOver(detail);
    }

    private void reportWriter(FabricLink link, TransferFault fault, String reported) {
        clock.after(
                kind.writerCopies() ? HOP_NS : delayNs(),
                () -> whenConnected(
                        link.target,
                        link.source.node.process(),
                        () -> link.source.run(() -> link.writer.lose(fault, reported))));
    }

    /** The writer has ended the link; the target notices later. */
    void writerClosed(FabricLink link) {
        if (link.target != null) {
            clock.after(
                    delayNs(),
                    () -> whenConnected(
                            link.source,
                            link.target.node.process(),
                            () -> link.target.run(() -> link.onWriterGone("the peer disconnected"))));
        }
    }

    void endTargets(FabricLink link, String detail) {
        List.copyOf(link.paths).forEach(path -> endTarget(path, detail));
    }

    /** The source's engine has ended the path; the target notices later. */
    void sourceClosed(SimulatedOutboundLink link) {
        FabricPath path = link.path;
        if (path != null) {
            clock.after(
                    delayNs(),
                    () -> whenConnected(
                            path.source,
                            path.target.node.process(),
                            () -> path.target.run(() -> endTarget(path, "the peer disconnected"))));
        }
    }

    void endSource(SimulatedOutboundLink link) {
        FabricPath path = link.path;
        if (path != null && !path.sourceGone) {
            path.sourceGone = true;
            writes.dropAtSource(path);
        }
    }

    private void endTarget(FabricPath path, String detail) {
        if (!path.targetGone) {
            if (kind.writerCopies()) {
                writes.countLanded(path);
            }
            path.targetGone = true;
            writes.dropAtTarget(path);
            path.target.inbound.remove(path);
            path.control.paths.remove(path);
            path.control.endIfOver(detail);
        }
    }

    /** The target's engine is closed, and receives nothing any more. Copies into its memory continue until it dies. */
    void closeTargets(SimulatedTransport target) {
        if (!kind.writerCopies()) {
            dropTargets(target);
        }
        for (FabricLink link : List.copyOf(target.admitted)) {
            reportWriter(link, TransferFault.PEER_CLOSED, "closed by the peer");
        }
    }

    private void dropTargets(SimulatedTransport target) {
        for (FabricPath path : List.copyOf(target.inbound)) {
            path.targetGone = true;
            writes.dropAtTarget(path);
            target.inbound.remove(path);
            path.control.paths.remove(path);
        }
    }

    void onWindowClosed(SimulatedTransport target, OpenWindow window) {
        writes.letGo(target, window);
    }

    // ---- faults

    /** Some open path breaks; each end notices at its own time. */
    void breakAnyPath() {
        List<SimulatedOutboundLink> open = byProcess.values().stream()
                .filter(transport -> transport.node.alive())
                .flatMap(transport -> transport.ofEngine().stream())
                .flatMap(transport -> transport.links.stream())
                .filter(SimulatedOutboundLink::isOpen)
                .toList();
        if (open.isEmpty()) {
            return;
        }
        FabricPath path = open.get(random.nextInt(open.size())).path;
        trace.add(path.source.node.process(), "pathLoss", "to " + path.target.node.process());
        clock.after(
                delayNs(),
                () -> path.source.run(() -> {
                    loseAtSource(path, "the path broke");
                    if (kind.writerCopies()) {
                        path.target.run(() -> endTarget(path, "the path broke"));
                    }
                }));
        if (!kind.writerCopies()) {
            clock.after(delayNs(), () -> path.target.run(() -> endTarget(path, "the path broke")));
        }
    }

    /** Writes reported as sent that have not landed are lost with their path: then the whole link is unreliable. */
    private void loseAtSource(FabricPath path, String detail) {
        if (kind.completionIsDelivery || path.link.hasLanes()) {
            path.link.lose(TransferFault.PEER_CLOSED, detail);
        } else {
            path.control.writer.lose(TransferFault.PEER_CLOSED, detail);
        }
    }

    /** Some lane breaks: the source stops, the target reports what it took, and the source opens another lane. */
    void breakAnyLane(SplittableRandom random) {
        List<SimulatedLane> open = openLanes();
        if (!open.isEmpty()) {
            SimulatedLane lane = open.get(random.nextInt(open.size()));
            trace.add(lane.link.transport.node.process(), "laneLoss", "to " + lane.link.path.target.node.process());
            later(lane.link.transport, () -> stop(lane));
        }
    }

    private List<SimulatedLane> openLanes() {
        return byProcess.values().stream()
                .filter(transport -> transport.node.alive())
                .flatMap(transport -> transport.ofEngine().stream())
                .flatMap(transport -> transport.links.stream())
                .filter(SimulatedOutboundLink::isOpen)
                .flatMap(link -> link.lanes.stream())
                .filter(lane -> !lane.broken)
                .toList();
    }

    /** The source's engine has given a lane up; called on its worker. */
    void giveUp(SimulatedLane lane) {
        trace.add(lane.link.transport.node.process(), "giveUp", "to " + lane.link.path.target.node.process());
        stop(lane);
    }

    /** From now on some lane accepts posts that silently reach nothing. */
    void swallowOnAnyLane(SplittableRandom random) {
        List<SimulatedLane> open = openLanes();
        if (!open.isEmpty()) {
            SimulatedLane lane = open.get(random.nextInt(open.size()));
            trace.add(lane.link.transport.node.process(), "swallow", "to " + lane.link.path.target.node.process());
            lane.swallows = true;
        }
    }

    private void stop(SimulatedLane lane) {
        FabricPath path = lane.link.path;
        if (!lane.broken && !path.sourceGone) {
            lane.broken = true;
            if (mutation == Mutation.REPEATED_UNPROVEN) {
                lane.link.lose(lane);
                return;
            }
            writes.dropAtSource(lane);
            clock.after(delayNs(), () -> whenConnected(path, () -> path.target.run(() -> endAtTarget(lane))));
        }
    }

    private void endAtTarget(SimulatedLane lane) {
        FabricPath path = lane.link.path;
        if (!path.targetGone) {
            writes.dropAtTarget(lane);
            clock.after(delayNs(), () -> whenConnected(path, () -> path.source.run(() -> lane.link.lose(lane))));
        }
    }

    /** The process is dead. A silent death is that of its machine: no packet notifies its peers. */
    void died(SimulatedTransport first, boolean silentDeath) {
        first.ofEngine().forEach(transport -> end(transport, silentDeath));
    }

    private void end(SimulatedTransport dead, boolean silentDeath) {
        boolean heard = kind.writerCopies() || !silentDeath;
        List.copyOf(dead.links).forEach(SimulatedOutboundLink::end);
        for (FabricLink link : List.copyOf(dead.opened)) {
            if (link.target != null) {
                reportOtherEnd(heard, link, () -> link.target.run(() -> link.onWriterGone("the peer died")));
            }
        }
        dropTargets(dead);
        for (FabricLink link : List.copyOf(dead.admitted)) {
            Runnable end = () -> link.source.run(() -> link.writer.lose(TransferFault.PEER_CLOSED, "the peer died"));
            reportOtherEnd(heard, link, end);
            if (!heard && kind == FabricKind.RDMA) {
                clock.after(RETRIES_EXHAUSTED_NS, end);
            }
        }
        List.copyOf(dead.knocking).forEach(link -> refuse(link, TransferFault.UNREACHABLE, dead.node.process()));
    }

    private void reportOtherEnd(boolean heard, FabricLink link, Runnable end) {
        if (heard) {
            clock.after(delayNs(), () -> whenConnected(link.source, link.target.node.process(), end));
        } else {
            silent.add(link);
        }
    }

    /** A machine that died silently is back: connections of its old incarnation are reset. */
    void restarted(String nodeName) {
        for (FabricLink link : List.copyOf(silent)) {
            boolean sourceDied = link.source.node.name().equals(nodeName);
            if (sourceDied || link.target.node.name().equals(nodeName)) {
                silent.remove(link);
                clock.after(delayNs(), () -> {
                    link.target.run(() -> link.onWriterGone("the peer restarted"));
                    link.source.run(() -> link.writer.lose(TransferFault.PEER_CLOSED, "the peer restarted"));
                });
            }
        }
    }

    // ---- time and reach

    boolean cut(FabricPath path) {
        return !kind.writerCopies() && partitions.dataCut(path.source.node.name(), path.target.node.name());
    }

    void whenConnected(FabricPath path, Runnable action) {
        whenConnected(path.source, path.target.node.process(), action);
    }

    /** Runs now, or once the two can reach each other again. */
    private void whenConnected(SimulatedTransport one, String otherProcess, Runnable action) {
        SimulatedTransport other = byProcess.get(otherProcess);
        if (other == null || kind.writerCopies()) {
            action.run();
        } else {
            partitions.whenDataConnected(one.node.name(), other.node.name(), action);
        }
    }

    long delayNs() {
        if (!healed && random.nextDouble() < swarm.slowFabric() * 0.1) {
            return random.nextLong(20 * Scenario.MILLI);
        }
        return HOP_NS + random.nextLong(300 * Scenario.MICRO);
    }

    /** A shuffled copy, for choices that should not depend on insertion order. */
    static <T> List<T> shuffled(List<T> items, SplittableRandom random) {
        List<T> copy = new ArrayList<>(items);
        Collections.shuffle(copy, new Random(random.nextLong()));
        return copy;
    }
}
