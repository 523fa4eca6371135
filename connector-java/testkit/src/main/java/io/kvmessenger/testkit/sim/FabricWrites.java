package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.PageWrite;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.function.Predicate;

/**
 * Carries writes over a {@link FabricPath}: in any order, with any delay, each in two halves, and its immediate last.
 * The {@link FabricKind} determines which worker, if any, performs a step, and what completion and refusal mean.
 */
final class FabricWrites {
    private static final int DAMAGED_WRITES_INTERVAL = 200;
    /** One in this many writes that were read at a lost source is lost with it. */
    private static final int LOST_WITH_SOURCE_INTERVAL = 4;

    private final SimulatedFabric fabric;
    private final SimulatedClock clock;
    private final Trace trace;
    private final FabricKind kind;
    private final SplittableRandom random;
    private final WorldListener listener;
    private final Mutation mutation;
    private final Set<FabricWrite> inFlight = new LinkedHashSet<>();
    /** Recovers the location of pages that were gathered elsewhere. */
    private final WriteBatch ungathered = new WriteBatch();

    private long lastWriteId;

    FabricWrites(
            SimulatedFabric fabric,
            SimulatedClock clock,
            Trace trace,
            FabricKind kind,
            SplittableRandom random,
            WorldListener listener,
            Mutation mutation) {
        this.fabric = fabric;
        this.clock = clock;
        this.trace = trace;
        this.kind = kind;
        this.random = random;
        this.listener = listener;
        this.mutation = mutation;
    }

    /** @param imm with the weight of these pages */
    void post(FabricWrite.Post post, WriteBatch batch, int firstPage, int pages, int imm) {
        FabricPath path = post.path;
        ungathered.set(batch.position(), batch.request(), batch.firstUnit(), batch.unitCount());
        PageWrite facts = new PageWrite(
                ++lastWriteId,
                path.source.node.process(),
                path.target.node.process(),
                imm,
                path.source.rankOf(batch.sourceRegion().descriptor().regionId()),
                ungathered.sourceOffsetBytes(firstPage),
                path.target.rankOf(batch.regionId()),
                batch.targetOffsetBytes(firstPage),
                Math.toIntExact(pages * batch.pageBytes()));
        send(new FabricWrite(facts, post, batch.source(), batch.sourceOffsetBytes(firstPage), batch.regionId()));
    }

    /** Posts a write without pages. */
    void postImmediate(FabricWrite.Post post, WriteBatch batch) {
        FabricPath path = post.path;
        int imm = Imm.withWeight(batch.window(), (int) batch.weight());
        PageWrite facts = new PageWrite(
                ++lastWriteId, path.source.node.process(), path.target.node.process(), imm, 0, 0, 0, 0, 0);
        send(new FabricWrite(facts, post, null, 0, 0));
    }

    private void send(FabricWrite write) {
        PageWrite facts = write.facts;
        FabricPath path = write.path();
        inFlight.add(write);
        write.post.writes.add(write);
        if (windowOf(write) != null) {
            path.target.postedWeights().merge(write.window(), (long) Imm.weight(facts.imm()), Long::sum);
        }
        trace.add(facts.source(), "submit", write.describe());
        listener.writeSubmitted(facts);
        if (write.post.lane == null || !write.post.lane.swallows) {
            clock.after(fabric.delayNs(), () -> beginRead(write));
        }
    }

    private void beginRead(FabricWrite write) {
        if (kind != FabricKind.RDMA) {
            write.path().source.run(() -> read(write));
        } else if (fabric.cut(write.path())) {
            fabric.whenConnected(write.path(), () -> beginRead(write));
        } else {
            read(write);
        }
    }

    private void read(FabricWrite write) {
        if (write.gone) {
            return;
        }
        PageWrite facts = write.facts;
        write.payload = write.isImmediate()
                ? new byte[0]
                : write.source.asSlice(write.readOffset, facts.lengthBytes()).toArray(ValueLayout.JAVA_BYTE);
        if (!write.isImmediate()
                && mutation == Mutation.PAYLOAD_DAMAGED
                && random.nextInt(DAMAGED_WRITES_INTERVAL) == 0) {
            write.payload[random.nextInt(write.payload.length)] ^= (byte) (1 << random.nextInt(Byte.SIZE));
        }
        listener.sourceRead(facts);
        if (write.post.lane == null ? !kind.completionIsDelivery : mutation == Mutation.SENT_WHEN_READ) {
            write.path().link.finished(write.post);
        }
        clock.after(fabric.delayNs(), () -> beginLanding(write));
    }

    private void beginLanding(FabricWrite write) {
        FabricPath path = write.path();
        if (write.gone) {
            return;
        }
        if (path.targetGone || !path.target.node.alive()) {
            gone(write);
        } else if (fabric.cut(path)) {
            fabric.whenConnected(path, () -> beginLanding(write));
        } else if (kind.writerCopies()) {
            path.source.run(() -> land(write));
        } else if (kind.targetChecks) {
            path.target.run(() -> land(write));
        } else {
            land(write);
        }
    }

    private void land(FabricWrite write) {
        if (write.gone) {
            return;
        }
        PageWrite facts = write.facts;
        int from = write.passedBytes;
        if (from == 0 && kind.targetChecks && !mayLand(write)) {
            return;
        }
        if (kind.copiesOn() && !write.discarded && !write.isImmediate()) {
            stage(write);
            return;
        }
        int to = from == 0 && facts.lengthBytes() > 1 ? facts.lengthBytes() / 2 : facts.lengthBytes();
        if (!write.discarded && !write.isImmediate()) {
            copy(write, from, to);
        }
        write.passedBytes = to;
        if (to < facts.lengthBytes()) {
            clock.after(random.nextInt(3) == 0 ? fabric.delayNs() : 0, () -> beginLanding(write));
        } else {
            landed(write);
        }
    }

    private void copy(FabricWrite write, int from, int to) {
        PageWrite facts = write.facts;
        MemorySegment.copy(
                write.payload,
                from,
                write.path().target.memoryOf(write.targetRegionId),
                ValueLayout.JAVA_BYTE,
                facts.targetOffset() + from,
                to - from);
        trace.add(facts.target(), "land", write.describe() + " bytes " + from + ".." + to);
        listener.landed(facts, from, to);
    }

    /** Queues the write for the device, which begins after a delay, whatever the process does meanwhile. */
    private void stage(FabricWrite write) {
        write.staged = true;
        clock.after(fabric.delayNs(), () -> copyOn(write));
        if (mutation == Mutation.COUNTED_BEFORE_COPIED) {
            landed(write);
        }
    }

    /** The device copies the next half; then the target's worker notices that it is done. */
    private void copyOn(FabricWrite write) {
        int lengthBytes = write.facts.lengthBytes();
        int from = write.passedBytes;
        if (from == lengthBytes || !write.path().target.node.alive()) {
            return;
        }
        if (!write.gone && fabric.copyFails(write.path().target.node)) {
            write.path().target.run(() -> failCopy(write));
            return;
        }
        int to = from == 0 && lengthBytes > 1 ? lengthBytes / 2 : lengthBytes;
        copy(write, from, to);
        write.passedBytes = to;
        if (to < lengthBytes) {
            clock.after(fabric.delayNs(), () -> copyOn(write));
        } else if (mutation != Mutation.COUNTED_BEFORE_COPIED) {
            write.path().target.run(() -> seeCopied(write));
        }
    }

    /** The copy fails and the write is not counted: its peer is told, and loses its admission. */
    private void failCopy(FabricWrite write) {
        if (!write.gone) {
            write.staged = false;
            FabricPath path = write.path();
            gone(write);
            fabric.dismiss(path.control, TransferFault.COPY_FAILED, "a device failed", "a device of the peer failed");
        }
    }

    private void seeCopied(FabricWrite write) {
        if (!write.gone) {
            landed(write);
        }
    }

    /** Waits for the device: nothing of the write is copied afterwards. */
    private void awaitCopy(FabricWrite write) {
        boolean copies =
                write.staged && mutation != Mutation.COUNTED_BEFORE_COPIED && mutation != Mutation.FREED_BEFORE_COPIED;
        if (copies && write.path().target.node.alive() && write.passedBytes < write.facts.lengthBytes()) {
            copy(write, write.passedBytes, write.facts.lengthBytes());
            write.passedBytes = write.facts.lengthBytes();
        }
    }

    /** The check of a target that sees writes: a stale write is discarded, one outside its window ends the path. */
    private boolean mayLand(FabricWrite write) {
        FabricPath path = write.path();
        OpenWindow window = path.target.port.windowOf(write.window());
        String fault = window == null ? "" : fault(window, write.post);
        if (!fault.isEmpty()) {
            String detail = "a write of " + path.admission.admission().peerName() + " " + fault;
            listener.writeRefused(write.facts.target(), detail);
            path.target.port.onRefused(path.admission, detail);
            gone(write);
            fabric.dismiss(path.control, TransferFault.WRITE_REFUSED, "refused a write", detail);
            return false;
        }
        if (window != null && window.beginLanding()) {
            write.landingIn = window;
        } else {
            discard(write);
        }
        return true;
    }

    /** Checks a post as a whole before a byte of it lands. Empty when it may land. */
    private static String fault(OpenWindow window, FabricWrite.Post post) {
        if (!window.isOf(post.path.admission)) {
            return "names a window of another peer";
        }
        for (FabricWrite write : post.writes) {
            if (!write.isImmediate() && !covers(window.area(), write)) {
                return "at offset " + write.facts.targetOffset() + " leaves its window";
            }
        }
        return "";
    }

    private static boolean covers(WindowArea area, FabricWrite write) {
        int part = area.partIndexOf(write.targetRegionId);
        return part >= 0
                && area.parts().get(part).ranges().contains(write.facts.targetOffset(), write.facts.lengthBytes());
    }

    private void discard(FabricWrite write) {
        write.discarded = true;
        trace.add(write.facts.target(), "stray", write.describe());
        write.path().target.port.onStray();
    }

    /** The end that copied or delivered it notifies the source; the target's worker counts it at a later time. */
    private void landed(FabricWrite write) {
        FabricPath path = write.path();
        write.landed = true;
        if (write.post.lane != null) {
            if (++write.post.landedCount == write.post.writes.size()) {
                clock.after(kind.targetChecks ? 0 : fabric.delayNs(), () -> path.target.run(() -> take(write.post)));
            }
            return;
        }
        if (kind.writerCopies()) {
            path.link.finished(write.post);
        } else if (kind.completionIsDelivery) {
            clock.after(fabric.delayNs(), () -> path.source.run(() -> path.link.finished(write.post)));
        }
        if (kind.targetChecks) {
            count(write);
        } else {
            clock.after(random.nextInt(3) == 0 ? fabric.delayNs() : 0, () -> path.target.run(() -> count(write)));
        }
    }

    /** All of a post is in place: it is counted, and its source is notified. */
    private void take(FabricWrite.Post post) {
        if (post.writes.stream().noneMatch(write -> write.gone)) {
            post.writes.forEach(this::count);
            post.taken = true;
            clock.after(fabric.delayNs(), () -> post.path.source.run(() -> post.path.link.taken(post)));
        }
    }

    /** A lane has broken at its source: what has not left never will. */
    void dropAtSource(SimulatedLane lane) {
        dropLane(lane, write -> write.payload == null);
    }

    /** A lane has ended at its target: nothing more of it lands or is counted. */
    void dropAtTarget(SimulatedLane lane) {
        dropLane(lane, write -> true);
    }

    private void dropLane(SimulatedLane lane, Predicate<FabricWrite> chosen) {
        for (FabricWrite write : List.copyOf(inFlight)) {
            if (write.post.lane == lane && chosen.test(write)) {
                gone(write);
            }
        }
    }

    private void count(FabricWrite write) {
        if (write.gone) {
            return;
        }
        FabricPath path = write.path();
        endLanding(write);
        if (!write.discarded) {
            boolean counts = windowOf(write) != null;
            if (counts) {
                listener.counted(write.facts);
            }
            trace.add(write.facts.target(), counts ? "count" : "stray", write.describe());
            path.target.port.onArrived(path.admission, write.window(), Imm.weight(write.facts.imm()));
        }
        gone(write);
    }

    private static OpenWindow windowOf(FabricWrite write) {
        OpenWindow window = write.path().target.port.windowOf(write.window());
        return window != null && window.isOf(write.path().admission) ? window : null;
    }

    private static void endLanding(FabricWrite write) {
        if (write.landingIn != null) {
            write.landingIn.endLanding();
            write.landingIn = null;
        }
    }

    // ---- ends

    /** The target's engine has closed a window: writes that have partly landed in it stop. */
    void letGo(SimulatedTransport target, OpenWindow window) {
        for (FabricWrite write : inFlight) {
            if (write.landingIn == window && write.path().target == target) {
                awaitCopy(write);
                endLanding(write);
                if (!write.staged) {
                    discard(write);
                }
            }
        }
    }

    /** What has not been read yet never will be. What has left the source may land while the target has the path. */
    void dropAtSource(FabricPath path) {
        for (FabricWrite write : List.copyOf(inFlight)) {
            if (write.path() == path) {
                boolean stays =
                        write.payload != null && !kind.writerCopies() && random.nextInt(LOST_WITH_SOURCE_INTERVAL) > 0;
                boolean counts = kind.writerCopies() && write.landed;
                if (!stays && !counts) {
                    gone(write);
                }
            }
        }
    }

    /** A ring in shared memory outlives its writer: the target reads it to its end before it closes the path. */
    void countLanded(FabricPath path) {
        for (FabricWrite write : List.copyOf(inFlight)) {
            if (write.path() == path && write.landed) {
                count(write);
            }
        }
    }

    void dropAtTarget(FabricPath path) {
        for (FabricWrite write : List.copyOf(inFlight)) {
            if (write.path() == path && (write.payload != null || path.sourceGone)) {
                gone(write);
            } else if (write.path() == path) {
                reportGone(write); // it may still be read
            }
        }
    }

    private void gone(FabricWrite write) {
        if (!write.gone) {
            awaitCopy(write);
            write.gone = true;
            endLanding(write);
            inFlight.remove(write);
            reportGone(write);
        }
    }

    private void reportGone(FabricWrite write) {
        if (!write.reportedGone) {
            write.reportedGone = true;
            listener.writeGone(write.facts);
        }
    }
}
