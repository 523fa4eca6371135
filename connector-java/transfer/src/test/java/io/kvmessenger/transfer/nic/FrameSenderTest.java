package io.kvmessenger.transfer.nic;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** A slab is never written to before the peer has given it back, nor its memory here while the NIC may read it. */
final class FrameSenderTest {
    private static final int SLABS = 3;
    private static final int SLAB_BYTES = 1024;
    private static final int WINDOW = Imm.of(5, 1);
    private static final int REGION = 9;

    private record Source(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    /** One write, and the header of its frame when it was posted. */
    private record Posted(int slab, long lengthBytes, long toOffset, long weight, long pageBytes, long targetOffset) {}

    private final Arena arena = Arena.ofConfined();
    private final MemorySegment memory = arena.allocate(8 * SLAB_BYTES);
    private final Regions regions = new Regions();
    private final List<Posted> posted = new ArrayList<>();
    private boolean full;
    private final SlabGrant grant = new SlabGrant(
            new RemoteMemory(-2, (long) SLABS * (GrantedSlabs.ROOM_BYTES + SLAB_BYTES), 0, 1), SLABS, SLAB_BYTES);
    private final FrameSender sender = new FrameSender(
            regions, new RegisteredSource(regions), grant, Long.MAX_VALUE, (address, length, key, imm, to, slab) -> {
                if (full) {
                    return false;
                }
                assertThat(FrameImm.isFrame(imm)).isTrue();
                assertThat(FrameImm.slab(imm)).isEqualTo(slab);
                MemorySegment frame = ForeignMemory.at(address, length);
                long pagesAt = grant.pagesOffset(slab) - to;
                posted.add(new Posted(
                        slab,
                        length - pagesAt,
                        to + pagesAt,
                        FrameHeader.weight(frame, pagesAt),
                        FrameHeader.pageBytes(frame, pagesAt),
                        FrameHeader.targetOffset(frame, pagesAt, 0)));
                return true;
            });

    @AfterEach
    void close() {
        sender.close();
        assertThat(regions.open).as("registrations").isZero();
        arena.close();
    }

    private int post(long lengthBytes, long postId) {
        Source source = new Source(
                new RegionDescriptor(REGION, memory.byteSize(), RegionDescriptor.VERSION, false), Memory.host(memory));
        WriteBatch batch = new WriteBatch();
        batch.set(0, new SingleWrite(source, 0, source.descriptor(), 64, lengthBytes, () -> WINDOW, 3), 0, 1);
        return sender.post(batch, postId);
    }

    @Test
    void shouldUseEachSlabOnceUntilItIsGivenBackAndRead() {
        for (int i = 0; i < SLABS; i++) {
            assertThat(post(100, i)).isEqualTo(1);
        }
        assertThat(post(100, 3)).as("no slab is free").isZero();
        assertThat(sender.onWritten(1)).isEqualTo(1);
        assertThat(post(100, 3)).as("it was read, and not given back").isZero();
        sender.onFreed(1L << 2);
        assertThat(post(100, 3)).as("it was given back, and may still be read").isZero();
        sender.onFreed(1L << 1);
        assertThat(post(100, 3)).isEqualTo(1);
        assertThat(posted).extracting(Posted::slab).containsExactly(0, 1, 2, 1);
        assertThat(posted).allMatch(one -> one.weight == 3 && one.targetOffset == 64);
        assertThat(sender.onWritten(1)).isEqualTo(3);
    }

    @Test
    void shouldTakeNothingWhileTheNicHasNoRoom() {
        full = true;
        assertThat(post(100, 1)).isZero();
        full = false;
        assertThat(post(100, 1)).isEqualTo(1);
        assertThat(posted).extracting(Posted::slab).containsExactly(0);
    }

    /** No order among writes is assumed: the part that is counted goes when the peer has copied all others. */
    @Test
    void shouldSendTheCountedPartOfALongPageLast() {
        assertThat(post(3 * SLAB_BYTES + 1, 7)).isEqualTo(1);
        assertThat(posted).extracting(Posted::lengthBytes).containsExactly(1024L, 1024L, 1024L);
        assertThat(posted).allMatch(one -> one.weight == 0);
        assertThat(posted).extracting(Posted::targetOffset).containsExactly(64L, 1088L, 2112L);
        assertThat(post(10, 8)).as("one long page at a time").isZero();
        for (int slab = 0; slab < SLABS; slab++) {
            assertThat(sender.onWritten(slab)).isEqualTo(FrameSender.NO_POST);
        }
        sender.onFreed(0b011);
        assertThat(sender.sendParts()).as("one part is not copied yet").isZero();
        sender.onFreed(0b100);
        assertThat(sender.sendParts()).isEqualTo(1);
        assertThat(posted.getLast()).isEqualTo(new Posted(0, 1, grant.pagesOffset(0), 3, 1, 64 + 3 * SLAB_BYTES));
        assertThat(sender.onWritten(0)).isEqualTo(7);
        assertThat(post(10, 8)).isEqualTo(1);
    }

    @Test
    void shouldRefuseSlabsThatThePeerHasNotHad() {
        post(100, 1);
        assertThatThrownBy(() -> sender.onFreed(0b11)).isInstanceOf(IllegalArgumentException.class);
        assertThatThrownBy(() -> sender.onFreed(1L << SLABS)).isInstanceOf(IllegalArgumentException.class);
        sender.onFreed(1);
        assertThatThrownBy(() -> sender.onFreed(1)).isInstanceOf(IllegalArgumentException.class);
    }

    @Test
    void shouldRefuseGrantsThatAreNone() {
        MemorySegment sound = grant.encode();
        assertThat(SlabGrant.parse(sound)).isEqualTo(grant);
        for (int count : new int[] {0, -1, SLABS + 1, 65, Integer.MAX_VALUE}) {
            MemorySegment other = grant.encode();
            other.set(ValueLayout.JAVA_INT_UNALIGNED, RemoteMemory.LENGTH_BYTES, count);
            assertThatThrownBy(() -> SlabGrant.parse(other)).isInstanceOf(IllegalArgumentException.class);
        }
        assertThatThrownBy(() -> SlabGrant.parse(sound.asSlice(0, RemoteMemory.LENGTH_BYTES)))
                .isInstanceOf(IllegalArgumentException.class);
    }

    /** Registers whatever it is given. */
    private static final class Regions extends NicRegions {
        int open;

        @Override
        protected Registered register(int regionId, MemorySegment memory, boolean isTarget) {
            open++;
            return new Registered(new RemoteMemory(regionId, memory.byteSize(), 0, 1), memory.address(), open, open);
        }

        @Override
        protected void deregister(Registered registered) {
            open--;
        }
    }
}
