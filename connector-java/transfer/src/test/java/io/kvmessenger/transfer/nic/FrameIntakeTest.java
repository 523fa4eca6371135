package io.kvmessenger.transfer.nic;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Frames of a peer that keeps to the rules, and of one that does not: what is not allowed is never copied to a device. */
final class FrameIntakeTest {
    private static final int SLABS = 3;
    private static final int SLAB_BYTES = 4096;
    private static final int WINDOW = Imm.of(7, 2);
    private static final long WINDOW_BYTES = 1024;
    private static final long DEVICE_ADDRESS = 1L << 30;
    private static final int PAGE_BYTES = 256;
    private static final int REGION = 1;

    private final InboundAdmission owner =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    private final FakePort port =
            new FakePort(owner, MemorySegment.ofArray(new byte[2 * (int) WINDOW_BYTES]), WINDOW, WINDOW_BYTES);
    private final RecordingSlabs slabs = new RecordingSlabs();
    private final List<String> faults = new ArrayList<>();
    private FrameIntake intake;

    @BeforeEach
    void open() {
        port.target = new Memory.Device(0, DEVICE_ADDRESS, WINDOW_BYTES, Memory.HandleKind.NONE);
        port.slabs = slabs;
        intake = FrameIntake.open(port, owner, new Figures(), new Faults());
    }

    /** A frame of pages of 256 bytes at these offsets. */
    private void frame(int slab, int window, int regionId, long weight, long... offsets) {
        long pagesAt = pagesAt(slab);
        FrameHeader.encode(slabs.memory, pagesAt, offsets.length, regionId, window, weight, PAGE_BYTES);
        for (int i = 0; i < offsets.length; i++) {
            FrameHeader.setTargetOffset(slabs.memory, pagesAt, i, offsets[i]);
        }
    }

    private static long pagesAt(int slab) {
        return (long) slab * (GrantedSlabs.ROOM_BYTES + SLAB_BYTES) + GrantedSlabs.ROOM_BYTES;
    }

    private void assertFault(String wanted) {
        assertThat(faults).singleElement().asString().contains(wanted);
        assertThat(slabs.copies).isEmpty();
        assertThat(port.landings).isZero();
    }

    @Test
    void shouldCopyPagesThatFollowEachOtherAsOneAndCountTheFrameWithItsCopies() {
        frame(1, WINDOW, REGION, 3, 512, 768, 0);
        intake.take(FrameImm.of(1));
        assertThat(faults).isEmpty();
        assertThat(slabs.copies)
                .containsExactly(
                        "1: 0 to " + (DEVICE_ADDRESS + 512) + " +512", "1: 512 to " + DEVICE_ADDRESS + " +256");
        assertThat(slabs.finished).containsExactly("1: imm " + WINDOW + " weight 3 pages 3 bytes 768");
        assertThat(port.landings).isEqualTo(1);
        assertThat(port.arrivedWeight).as("not before its copies are done").isZero();
    }

    @Test
    void shouldDiscardAFrameOfAClosedWindowAndGiveItsSlabBack() {
        frame(2, Imm.of(7, 3), REGION, 1, 0);
        intake.take(FrameImm.of(2));
        assertThat(faults).isEmpty();
        assertThat(port.strays).isEqualTo(1);
        assertThat(intake.freed()).isEqualTo(1L << 2);
    }

    @Test
    void shouldRefusePagesThatLeaveTheWindowByAByte() {
        frame(0, WINDOW, REGION, 2, 0, WINDOW_BYTES - PAGE_BYTES + 1);
        intake.take(FrameImm.of(0));
        assertFault("refused: a write of writer with slot 7 generation 2 at offset 769 of 256 bytes leaves its window");
    }

    @Test
    void shouldRefuseNegativeOffsets() {
        frame(0, WINDOW, REGION, 1, -1);
        intake.take(FrameImm.of(0));
        assertFault("at offset -1");
    }

    @Test
    void shouldRefuseTheWindowOfAnotherPeer() {
        port.owner = new InboundAdmission(new Admission(2, "other", new byte[Admission.KEY_LENGTH_BYTES]));
        frame(0, WINDOW, REGION, 1, 0);
        intake.take(FrameImm.of(0));
        assertFault("refused: a write of writer with slot 7 generation 2 names a window of another peer");
    }

    @Test
    void shouldRefuseARegionOutsideTheWindow() {
        frame(0, WINDOW, REGION + 1, 1, 0);
        intake.take(FrameImm.of(0));
        assertFault("names region 2, on which its window does not lie");
    }

    @Test
    void shouldRefuseAFrameForHostMemory() {
        port.target = Memory.host(port.memory);
        frame(0, WINDOW, REGION, 1, 0);
        intake.take(FrameImm.of(0));
        assertFault("which is no device's");
    }

    @Test
    void shouldEndAPeerWhoseFrameHasNoMark() {
        intake.take(FrameImm.of(0));
        assertFault("garbage: a frame does not begin with its mark");
    }

    @Test
    void shouldEndAPeerWhosePagesDoNotFitTheSlab() {
        FrameHeader.encode(slabs.memory, pagesAt(0), 17, REGION, WINDOW, 17, PAGE_BYTES);
        intake.take(FrameImm.of(0));
        assertFault("garbage: a frame claims 17 pages of 256 bytes in a slab of 4096");
    }

    @Test
    void shouldEndAPeerWhoseHeaderDoesNotFitItsRoom() {
        FrameHeader.encode(slabs.memory, pagesAt(0), FrameHeader.PAGES_MAX + 1, REGION, WINDOW, 1, 0);
        intake.take(FrameImm.of(0));
        assertFault("garbage: a frame claims 509 pages");
    }

    @Test
    void shouldEndAPeerThatClaimsMoreWeightThanItsPagesMayHave() {
        frame(0, WINDOW, REGION, Imm.WEIGHT_MAX + 1L, 0);
        intake.take(FrameImm.of(0));
        assertFault("garbage: a frame claims weight 4096");
    }

    /** It would be copied a second time, or while the first copy runs. */
    @Test
    void shouldEndAPeerThatWritesToASlabThatIsNotItsOwnNow() {
        frame(1, WINDOW, REGION, 1, 0);
        intake.take(FrameImm.of(1));
        intake.take(FrameImm.of(1));
        assertThat(faults).containsExactly("garbage: a frame has come to slab 1, which the peer may not write to now");
        slabs.copying[1] = false;
        intake.onFree(1);
        faults.clear();
        intake.take(FrameImm.of(1));
        assertThat(faults).as("it does not know yet that it is free").hasSize(1);
        intake.onFreedReported();
        intake.take(FrameImm.of(1));
        assertThat(slabs.finished).hasSize(2);
        faults.clear();
        intake.take(FrameImm.of(SLABS));
        assertThat(faults).containsExactly("garbage: a frame has come to slab 3, which the peer may not write to now");
    }

    /** What the header says is decided once: the peer can write to the slab at any time. */
    @Test
    void shouldNotReadAHeaderAgainThatThePeerChangesMeanwhile() {
        frame(0, WINDOW, REGION, 2, 0, 512);
        slabs.onBegin = () -> frame(0, WINDOW, REGION, 2, 1L << 40, 1L << 41);
        intake.take(FrameImm.of(0));
        assertThat(slabs.copies)
                .containsExactly(
                        "0: 0 to " + DEVICE_ADDRESS + " +256", "0: 256 to " + (DEVICE_ADDRESS + 512) + " +256");
    }

    private final class Faults implements FrameIntake.Events {
        @Override
        public void onRefused(String detail) {
            faults.add("refused: " + detail);
        }

        @Override
        public void onGarbage(String detail) {
            faults.add("garbage: " + detail);
        }

        @Override
        public void onCopyFailed(String detail) {
            faults.add("copy: " + detail);
        }

        @Override
        public void onError(Throwable error) {
            faults.add("error: " + error);
        }
    }

    /** Copies nothing. */
    private static final class RecordingSlabs implements GrantedSlabs {
        final MemorySegment memory = MemorySegment.ofArray(new long[SLABS * (ROOM_BYTES + SLAB_BYTES) / Long.BYTES]);
        final List<String> copies = new ArrayList<>();
        final List<String> finished = new ArrayList<>();
        final boolean[] copying = new boolean[SLABS];
        Runnable onBegin = () -> {};

        @Override
        public MemorySegment memory() {
            return memory;
        }

        @Override
        public int count() {
            return SLABS;
        }

        @Override
        public long slabBytes() {
            return SLAB_BYTES;
        }

        @Override
        public boolean isCopying(int slab) {
            return copying[slab];
        }

        @Override
        public void begin(int slab, OpenWindow window, Memory.Device target) {
            copying[slab] = true;
            onBegin.run();
        }

        @Override
        public void copy(int slab, long offsetBytes, long deviceAddress, long lengthBytes) {
            copies.add(slab + ": " + offsetBytes + " to " + deviceAddress + " +" + lengthBytes);
        }

        @Override
        public void finish(int slab, int imm, long weight, int pageCount, long payloadBytes) {
            finished.add(
                    slab + ": imm " + imm + " weight " + weight + " pages " + pageCount + " bytes " + payloadBytes);
        }

        @Override
        public void copyLanded() {}

        @Override
        public boolean isSettled() {
            return true;
        }

        @Override
        public void close() {}
    }
}
