package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** One admission, one window over one region; remembers what it was told. */
public final class FakePort implements InboundPort {
    public final MemorySegment memory;
    public final List<String> closed = new ArrayList<>();
    public final List<String> refused = new ArrayList<>();
    public final OpenWindow window;
    public InboundAdmission owner;
    public long arrivedWeight;
    public int landings;
    public int strays;
    /** The memory of the window. */
    public Memory target;
    /** For a peer's frames; null for none. */
    public GrantedSlabs slabs;
    /** Whether the admission has not ended. */
    public boolean live = true;
    /** Called when an admission is looked up. */
    public Runnable lookUps = () -> {};
    /** Thrown when something arrives. */
    public Error thrown;

    private final InboundAdmission admission;
    private final int windowImm;

    /** @param windowBytes the window's length, from the memory's start */
    public FakePort(InboundAdmission admission, MemorySegment memory, int windowImm, long windowBytes) {
        this.admission = admission;
        this.memory = memory;
        this.windowImm = windowImm;
        owner = admission;
        target = Memory.host(memory);
        window = new FakeWindow(windowBytes);
    }

    @Override
    public InboundAdmission admissionOf(byte[] keyName) {
        lookUps.run();
        return live && admission.isNamed(keyName) ? admission : null;
    }

    @Override
    public OpenWindow windowOf(int imm) {
        return imm == windowImm ? window : null;
    }

    @Override
    public boolean expectsWrites() {
        return true;
    }

    @Override
    public GrantedSlabs grantSlabs(InboundAdmission from, Figures figures, GrantedSlabs.Events events) {
        return slabs;
    }

    @Override
    public void onStray() {
        strays++;
    }

    @Override
    public void onArrived(InboundAdmission from, int imm, long weight) {
        if (thrown != null) {
            throw thrown;
        }
        arrivedWeight += weight;
    }

    @Override
    public void onRefused(InboundAdmission from, String detail) {
        refused.add(detail);
    }

    @Override
    public void onClosed(InboundAdmission from, String detail) {
        closed.add(detail);
    }

    @Override
    public boolean onMessage(InboundAdmission from, MemorySegment message) {
        return true;
    }

    @Override
    public boolean onReadEnded(InboundAdmission from, MemorySegment answer) {
        return false;
    }

    @Override
    public RemoteKey keyOf(Domain domain, int regionId) {
        return null;
    }

    @Override
    public boolean reachesAll(Domain domain) {
        return true;
    }

    private final class FakeWindow implements OpenWindow {
        private final WindowArea area;

        FakeWindow(long windowBytes) {
            area = WindowArea.of(
                    new RegionDescriptor(1, memory.byteSize(), RegionDescriptor.VERSION, false),
                    WindowRanges.ofEqual(new long[] {0}, windowBytes));
        }

        @Override
        public WindowArea area() {
            return area;
        }

        @Override
        public Memory memory(int partIndex) {
            return target;
        }

        @Override
        public boolean isOf(InboundAdmission from) {
            return from == owner;
        }

        @Override
        public boolean beginLanding() {
            landings++;
            return true;
        }

        @Override
        public void endLanding() {
            landings--;
        }
    }
}
