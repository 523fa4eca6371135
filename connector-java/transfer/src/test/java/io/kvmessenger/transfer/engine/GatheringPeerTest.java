package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.WriteBatch;
import io.kvmessenger.transfer.staging.Staging;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * A device reads pages while the peer that they go to ends: the prefiller's engine reuses them as soon as it is told
 * that the write has ended, so it must not be told before the device has read them.
 */
final class GatheringPeerTest {
    private static final int PAGE_BYTES = 64;
    private static final int SLAB_PAGES = 4;

    /** How the peer ends. */
    enum End {
        DISCONNECTED,
        LINK_LOST,
        PATHS_FAILED,
        PATH_AND_LINK_LOST
    }

    /** Copies that are done when the test says so. */
    private final class SlowCopies implements DeviceAccess, CopyStream {
        private final List<Long> targets = new ArrayList<>();
        private long marks;
        private long done;

        @Override
        public String refusal(int ordinal) {
            return null;
        }

        @Override
        public CopyStream openStream(int ordinal) {
            return this;
        }

        @Override
        public MemorySegment pin(long lengthBytes) {
            return arena.allocate(lengthBytes);
        }

        @Override
        public void toHost(long hostAddress, long deviceAddress, long lengthBytes) {
            targets.add(hostAddress);
        }

        @Override
        public void fromHost(long deviceAddress, long hostAddress, long lengthBytes) {}

        @Override
        public void onDevice(long targetAddress, long sourceAddress, long lengthBytes) {}

        @Override
        public long mark() {
            return ++marks;
        }

        @Override
        public boolean isDone(long serial) {
            return serial <= done;
        }

        @Override
        public void close() {}
    }

    private static final class Taking implements Endpoint {
        final List<Long> taken = new ArrayList<>();

        @Override
        public int post(WriteBatch batch, long postId) {
            taken.add(postId);
            return batch.unitCount();
        }
    }

    private final Arena arena = Arena.ofConfined();
    private final SlowCopies copies = new SlowCopies();
    private final FakeDomain domain = new FakeDomain("network", Long.MAX_VALUE / 2);
    private final FakeLinks links = new FakeLinks();
    private final Taking path = new Taking();
    private final CompletionRing completions = new CompletionRing(64, () -> {});
    private final List<Integer> reported = new ArrayList<>();
    private final OutboundPeer peer = new OutboundPeer(
            1,
            "peer",
            new OutboundPeer.Target(
                    new EngineAddress(List.of(domain.at("there"))),
                    new byte[Admission.KEY_LENGTH_BYTES],
                    links,
                    List.of(domain),
                    new Staging(copies, new StagingLimits(SLAB_PAGES * PAGE_BYTES, 2, 1)),
                    LinkSharing.ofEngine().loads()),
            8,
            new Allowances(new RegionTable(new FfmLibC())),
            completions,
            new Figures(),
            () -> 0);

    @AfterEach
    void close() {
        arena.close();
    }

    private void end(End how) {
        switch (how) {
            case DISCONNECTED -> peer.disconnect(TransferFault.DISCONNECTED, "by this engine");
            case LINK_LOST -> links.events.onLost(TransferFault.PEER_CLOSED, "it closed");
            case PATHS_FAILED -> domain.events.onFailed(TransferFault.PEER_CLOSED, "they failed");
            case PATH_AND_LINK_LOST -> {
                domain.events.onPathLost(path);
                links.events.onLost(TransferFault.PEER_CLOSED, "it closed");
            }
        }
    }

    private void submit(int pageCount) {
        PageList pages = new PageList(new int[pageCount], 0, pageCount, PAGE_BYTES, 0);
        OutboundPeerBed.Registered source = new OutboundPeerBed.Registered(
                new RegionDescriptor(1, PAGE_BYTES, RegionDescriptor.VERSION, false),
                new Memory.Device(0, 1 << 20, PAGE_BYTES, Memory.HandleKind.NONE));
        peer.offer(
                new PagedWrites(source, pages, source.descriptor(), pages, PAGE_BYTES, () -> Imm.of(1, 0), 1),
                7,
                WriteLedger.OF_USER);
    }

    private void open() {
        peer.connect(0);
        peer.doWork(0);
        domain.events.onReady();
        domain.events.onPathOpened(path);
        submit(SLAB_PAGES);
        peer.doWork(0);
        assertThat(copies.targets).isNotEmpty();
        assertThat(path.taken).as("nothing is sent that has not been copied").isEmpty();
        reported();
        reported.clear();
    }

    private List<Integer> reported() {
        completions.drain((kind, cookie, value, subject, detail) -> reported.add(kind), 64);
        return reported;
    }

    @ParameterizedTest
    @EnumSource
    void shouldReturnNoSourcePageWhileADeviceStillReadsIt(End end) {
        open();
        end(end);
        for (int i = 0; i < 4; i++) {
            peer.doWork(0);
            peer.settle();
        }
        assertThat(reported()).as("while the device reads").isEmpty();
        assertThat(peer.isSettled()).isFalse();
        copies.done = Long.MAX_VALUE;
        peer.doWork(0);
        assertThat(reported()).contains(CompletionRing.WRITE_FAILED);
        assertThat(peer.isSettled()).isTrue();
        assertThat(path.taken).isEmpty();
    }

    /** The other path would send what the device is still writing there for a path that is gone. */
    @Test
    void shouldNotGatherAnewWhereADeviceStillWritesForALostPath() {
        open();
        Taking other = new Taking();
        domain.events.onPathOpened(other);
        domain.events.onPathLost(path);
        peer.doWork(0);
        assertThat(copies.targets).doesNotHaveDuplicates();
        assertThat(other.taken).isEmpty();
        copies.done = Long.MAX_VALUE;
        peer.doWork(0);
        assertThat(other.taken).isNotEmpty();
        assertThat(path.taken).isEmpty();
    }
}
