package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

/**
 * The open windows by slot: who may write where, and the counter of each.
 *
 * <p>Opened and closed by the messenger's thread, looked up by all workers. A window closed without proof keeps its
 * slot and its hold on its regions until its admission has ended.
 */
final class WindowTable {
    private final ImmCounters counters;
    private final Consumer<OpenWindow> release;
    private final Window[] windows;
    private final AtomicInteger openCount = new AtomicInteger();

    /** @param release makes every worker abandon half-received writes for a closed window */
    WindowTable(EngineLimits limits, Consumer<OpenWindow> release) {
        this(new ImmCounters(limits.slots(), limits.generations()), limits.slots(), release);
    }

    /** @param counters for as many slots */
    WindowTable(ImmCounters counters, int slots, Consumer<OpenWindow> release) {
        this.counters = counters;
        windows = new Window[slots];
        this.release = release;
    }

    /** Opens a window, or returns null when all slots are in use. */
    Window open(Admission from, List<RegisteredRegion> regions, WindowArea area, long expectedWeight, long cookie) {
        int imm = counters.reserve(expectedWeight);
        if (imm == Imm.NONE) {
            return null;
        }
        Window window = new Window(imm, from, regions, area, expectedWeight, cookie);
        windows[Imm.slot(imm)] = window;
        regions.forEach(RegisteredRegion::hold);
        openCount.incrementAndGet();
        counters.publish(imm);
        return window;
    }

    /** Frees the windows closed without proof: the admission has ended. */
    void onAdmissionClosed(Admission admission) {
        for (Window window : windows) {
            if (window != null && window.from.id() == admission.id()) {
                window.admissionClosed = true;
                if (window.closed) {
                    window.free();
                }
            }
        }
    }

    /** Windows that are open or not yet free. Any thread. */
    int openCount() {
        return openCount.get();
    }

    ImmCounters counters() {
        return counters;
    }

    /** Worker: the open window with this slot and generation, or null. */
    Window find(int imm) {
        if (!counters.isOpen(imm)) {
            return null;
        }
        Window window = windows[Imm.slot(imm)];
        // The messenger may have closed the window, and even opened the slot anew, since it was found open.
        return window != null && window.imm == (imm & ~Imm.WEIGHT_MAX) ? window : null;
    }

    /** One window; its final fields are read by workers, each of which may have writes landing. */
    final class Window implements ImmWindow, OpenWindow {
        final int imm;
        final Admission from;
        final List<RegisteredRegion> regions;
        final WindowArea area;
        final long expectedWeight;
        final long cookie;
        private final AtomicInteger landings = new AtomicInteger();
        private boolean closed;
        private boolean admissionClosed;
        private long finalWeight;

        Window(
                int imm,
                Admission from,
                List<RegisteredRegion> regions,
                WindowArea area,
                long expectedWeight,
                long cookie) {
            this.imm = imm;
            this.from = from;
            this.regions = regions;
            this.area = area;
            this.expectedWeight = expectedWeight;
            this.cookie = cookie;
        }

        @Override
        public int imm() {
            return imm;
        }

        @Override
        public WindowArea area() {
            return area;
        }

        @Override
        public Memory memory(int partIndex) {
            return regions.get(partIndex).memory();
        }

        @Override
        public long arrivedWeight() {
            return closed ? finalWeight : counters.arrivedWeight(imm);
        }

        @Override
        public long expectedWeight() {
            return expectedWeight;
        }

        @Override
        public void close(boolean drained) {
            if (closed) {
                return;
            }
            closed = true;
            finalWeight = counters.retire(imm);
            // Either a worker sees the retired slot before it lets a write land, or we see that write here.
            if (landings.get() > 0) {
                release.accept(this);
            }
            if (drained || admissionClosed) {
                free();
            }
        }

        @Override
        public boolean isOf(InboundAdmission writer) {
            return from.id() == writer.admission().id();
        }

        @Override
        public boolean beginLanding() {
            landings.incrementAndGet();
            if (counters.isOpen(imm)) {
                return true;
            }
            landings.decrementAndGet();
            return false;
        }

        @Override
        public void endLanding() {
            landings.decrementAndGet();
        }

        boolean isLanding() {
            return landings.get() > 0;
        }

        boolean isClosed() {
            return closed;
        }

        private void free() {
            windows[Imm.slot(imm)] = null;
            openCount.decrementAndGet();
            regions.forEach(RegisteredRegion::release);
            counters.free(imm);
        }
    }
}
