package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.WindowArea;
import java.util.ArrayDeque;

/** One engine's imm slots and the windows open on them. */
final class SimulatedWindows {
    private final Window[] bySlot;
    private final int[] generations;
    private final ArrayDeque<Integer> free = new ArrayDeque<>();
    private final boolean reusedAtOnce;
    private final boolean generationIgnored;
    private final boolean countedWhenPosted;

    SimulatedWindows(int slotCount, boolean reusedAtOnce, Mutation mutation, FabricKind kind) {
        this.bySlot = new Window[slotCount + 1];
        this.generations = new int[slotCount + 1];
        this.reusedAtOnce = reusedAtOnce;
        this.generationIgnored = mutation == Mutation.GENERATION_IGNORED;
        this.countedWhenPosted = mutation == Mutation.COUNTED_WHEN_POSTED || (generationIgnored && kind.targetChecks);
        for (int slot = 1; slot <= slotCount; slot++) {
            free.addLast(slot);
        }
    }

    Window open(SimulatedTransferEngine.Admitted from, WindowArea area, long expected, long cookie) {
        if (free.isEmpty()) {
            return null;
        }
        int slot = reusedAtOnce ? free.removeLast() : free.removeFirst();
        Window window = new Window(Imm.of(slot, generations[slot]), from, area, expected, cookie);
        bySlot[slot] = window;
        return window;
    }

    /** The open window that this imm names, or null. */
    Window find(SimulatedTransferEngine.Admitted from, int imm) {
        Window window = bySlot[Imm.slot(imm)];
        boolean found = window != null
                && !window.closed
                && window.from == from
                && (generationIgnored || Imm.generation(window.imm) == Imm.generation(imm));
        return found ? window : null;
    }

    void onAdmissionClosed(SimulatedTransferEngine.Admitted admitted) {
        for (Window window : bySlot) {
            if (window != null && window.from == admitted && window.closed) {
                window.free();
            }
        }
    }

    int openCount() {
        int count = 0;
        for (Window window : bySlot) {
            count += window == null ? 0 : 1;
        }
        return count;
    }

    /** An open window; kept after closing until its slot may be used again. */
    final class Window implements ImmWindow {
        final int imm;
        final SimulatedTransferEngine.Admitted from;
        final WindowArea area;
        final long expected;
        final long cookie;
        long arrived;
        long posted;
        boolean overshot;
        boolean closed;

        Window(int imm, SimulatedTransferEngine.Admitted from, WindowArea area, long expected, long cookie) {
            this.imm = imm;
            this.from = from;
            this.area = area;
            this.expected = expected;
            this.cookie = cookie;
        }

        @Override
        public int imm() {
            return imm;
        }

        @Override
        public long arrivedWeight() {
            return countedWhenPosted ? posted : arrived;
        }

        @Override
        public long expectedWeight() {
            return expected;
        }

        @Override
        public void close(boolean drained) {
            if (!closed) {
                closed = true;
                if (drained || from.closed) {
                    free();
                }
            }
        }

        private void free() {
            int slot = Imm.slot(imm);
            if (bySlot[slot] == this) {
                bySlot[slot] = null;
                generations[slot] = (generations[slot] + 1) % Imm.GENERATION_COUNT;
                free.addLast(slot);
            }
        }
    }
}
