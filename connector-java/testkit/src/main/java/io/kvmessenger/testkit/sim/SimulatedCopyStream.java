package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceFault;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/**
 * One stream of {@link SimulatedCopies}: copies between two marks are done in any order, each in two halves. After a
 * fault its copies continue until it is closed, which completes those that have begun and drops the others.
 */
final class SimulatedCopyStream implements CopyStream {
    private static final class Copy {
        final long hostAddress;
        final long deviceAddress;
        final long lengthBytes;
        long doneBytes;

        Copy(long hostAddress, long deviceAddress, long lengthBytes) {
            this.hostAddress = hostAddress;
            this.deviceAddress = deviceAddress;
            this.lengthBytes = lengthBytes;
        }

        boolean isDone() {
            return doneBytes == lengthBytes;
        }
    }

    /** The copies between two marks. */
    private static final class Stretch {
        final List<Copy> copies = new ArrayList<>();
        boolean marked;

        boolean isDone() {
            return marked && copies.stream().allMatch(Copy::isDone);
        }
    }

    private final SimulatedCopies copies;
    /** The first is being copied; the last accepts copies, and has no mark yet. */
    private final Deque<Stretch> stretches = new ArrayDeque<>();

    private long marks;
    private long reached;
    private boolean failed;
    private boolean closed;

    SimulatedCopyStream(SimulatedCopies copies) {
        this.copies = copies;
        stretches.add(new Stretch());
    }

    @Override
    public void toHost(long hostAddress, long deviceAddress, long lengthBytes) {
        requireSound();
        copies.refuseSometimes("a copy");
        Copy copy = new Copy(hostAddress, deviceAddress, lengthBytes);
        stretches.getLast().copies.add(copy);
        if (stretches.size() == 1) {
            begin(copy);
        }
    }

    @Override
    public void fromHost(long deviceAddress, long hostAddress, long lengthBytes) {
        throw new AssertionError("what comes for a device is copied on by the simulated fabric");
    }

    @Override
    public void onDevice(long targetAddress, long sourceAddress, long lengthBytes) {
        throw new AssertionError("no transport of the simulation copies between devices");
    }

    private void begin(Copy copy) {
        copies.clock.after(copies.copyNs(), () -> advance(copy));
    }

    private void advance(Copy copy) {
        boolean over = closed && copies.fabric.mutation() != Mutation.COPIES_OUTLIVE_STREAM;
        if (over || !copies.node.alive()) {
            return;
        }
        copyHalf(copy);
        if (!copy.isDone()) {
            begin(copy);
        } else if (!closed) {
            seeReached();
        }
    }

    private void copyHalf(Copy copy) {
        long left = copy.lengthBytes - copy.doneBytes;
        long now = copy.doneBytes == 0 && left > 1 ? left / 2 : left;
        copies.copy(copy.hostAddress + copy.doneBytes, copy.deviceAddress + copy.doneBytes, now);
        copy.doneBytes += now;
    }

    private void seeReached() {
        while (stretches.getFirst().isDone()) {
            stretches.removeFirst();
            reached++;
            stretches.getFirst().copies.forEach(this::begin);
        }
        copies.wakeWorkers();
    }

    @Override
    public long mark() {
        requireSound();
        stretches.getLast().marked = true;
        stretches.addLast(new Stretch());
        marks++;
        if (copies.fabric.copyFails(copies.node)) {
            copies.clock.after(copies.fabric.delayNs(), this::fail);
        }
        seeReached();
        return marks;
    }

    private void fail() {
        failed = true;
        copies.wakeWorkers();
    }

    @Override
    public boolean isDone(long serial) {
        requireSound();
        return serial <= (copies.fabric.mutation() == Mutation.SENT_BEFORE_GATHERED ? marks : reached);
    }

    private void requireSound() {
        if (failed && !copies.fabric.isHealed()) {
            throw new DeviceFault("a stream", "a fault of the seed");
        }
    }

    /** Copies that have begun are completed; the others are dropped. */
    @Override
    public void close() {
        closed = true;
        if (copies.fabric.mutation() == Mutation.COPIES_OUTLIVE_STREAM || !copies.node.alive()) {
            return;
        }
        for (Copy copy : stretches.getFirst().copies) {
            while (copy.doneBytes > 0 && !copy.isDone()) {
                copyHalf(copy);
            }
        }
    }
}
