package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.RegionDescriptor;
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

/** Pages that are gathered at once, and of which a path makes several writes before it is lost: none is counted twice. */
final class GatheredPartsTest {
    private static final int PAGE_BYTES = 64;
    private static final int SLAB_PAGES = 8;
    private static final int REQUESTS_MAX = 8;
    private static final long COOKIE = 7;

    /** Takes so many pages a post, while it has room. */
    private static final class FakePath implements Endpoint {
        final List<Integer> pages = new ArrayList<>();
        final List<Long> postIds = new ArrayList<>();
        final int pagesMax;
        int room = Integer.MAX_VALUE;

        FakePath(int pagesMax) {
            this.pagesMax = pagesMax;
        }

        @Override
        public int post(WriteBatch batch, long postId) {
            if (postIds.size() >= room) {
                return 0;
            }
            int taken = batch.limit(pagesMax, Long.MAX_VALUE, Long.MAX_VALUE);
            for (int i = 0; i < taken; i++) {
                pages.add(batch.firstUnit() + i);
            }
            postIds.add(postId);
            return taken;
        }
    }

    /** Copies nothing, at once. */
    private final class NoCopies implements DeviceAccess, CopyStream {
        private long marks;

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
        public void toHost(long hostAddress, long deviceAddress, long lengthBytes) {}

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
            return true;
        }

        @Override
        public void close() {}
    }

    private final Arena arena = Arena.ofConfined();
    private final OutboundPeerBed.Registered memory = new OutboundPeerBed.Registered(
            new RegionDescriptor(1, PAGE_BYTES, RegionDescriptor.VERSION, false),
            new Memory.Device(0, 1 << 20, PAGE_BYTES, Memory.HandleKind.NONE));
    private final CompletionRing completions = new CompletionRing(64, () -> {});
    private final FakeDomain domain = new FakeDomain("network", Long.MAX_VALUE / 2);
    private final FakeLinks links = new FakeLinks();
    private final OutboundPeer peer = new OutboundPeer(
            1,
            "peer",
            new OutboundPeer.Target(
                    new EngineAddress(List.of(domain.at("there"))),
                    new byte[Admission.KEY_LENGTH_BYTES],
                    links,
                    List.of(domain),
                    new Staging(new NoCopies(), new StagingLimits(SLAB_PAGES * PAGE_BYTES, 2, 1)),
                    LinkSharing.ofEngine().loads()),
            REQUESTS_MAX,
            new Allowances(new RegionTable(new FfmLibC())),
            completions,
            new Figures(),
            () -> 0);

    @AfterEach
    void close() {
        arena.close();
    }

    private FakePath open(int pagesMax) {
        FakePath path = new FakePath(pagesMax);
        domain.events.onPathOpened(path);
        return path;
    }

    private void submit(int pageCount) {
        domain.ended = links.ended;
        peer.connect(0);
        peer.doWork(0);
        domain.events.onReady();
        PageList pages = new PageList(new int[pageCount], 0, pageCount, PAGE_BYTES, 0);
        peer.offer(
                new PagedWrites(memory, pages, memory.descriptor(), pages, PAGE_BYTES, () -> Imm.of(1, 0), 1),
                COOKIE,
                WriteLedger.OF_USER);
    }

    private void work() {
        for (int i = 0; i < 4; i++) {
            peer.doWork(0);
        }
    }

    private int completed() {
        List<Long> seen = new ArrayList<>();
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    if (kind == CompletionRing.WRITE_COMPLETED) {
                        seen.add(cookie);
                    }
                },
                64);
        return seen.size();
    }

    @Test
    void shouldSendAgainOnlyWhatALostPathHasNotSent() {
        submit(SLAB_PAGES);
        FakePath lost = open(3);
        lost.room = 2;
        work();
        assertThat(lost.pages).containsExactly(0, 1, 2, 3, 4, 5);
        domain.events.onSent(lost.postIds.getFirst());
        FakePath other = open(SLAB_PAGES);
        domain.events.onPathLost(lost);
        work();
        assertThat(other.pages).containsExactlyInAnyOrder(3, 4, 5, 6, 7);
        assertThat(completed()).isZero();
        other.postIds.forEach(domain.events::onSent);
        assertThat(completed()).isEqualTo(1);
        assertThat(peer.queuedBytes()).isZero();
    }

    @Test
    void shouldTakeThePartsOfAPostAsSentInAnyOrder() {
        int pageCount = 4 * SLAB_PAGES;
        submit(pageCount);
        FakePath path = open(3);
        for (int sent = 0; completed() == 0 && sent < pageCount; sent++) {
            work();
            domain.events.onSent(path.postIds.removeLast());
        }
        assertThat(path.postIds).isEmpty();
        assertThat(path.pages).hasSize(pageCount).doesNotHaveDuplicates();
    }
}
