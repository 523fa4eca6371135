package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.RemoteKey;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** A peer whose paths take what the test lets them take. */
final class OutboundPeerTest {
    private static final int PAGE_BYTES = 1 << 20;
    private static final int PAGES_PER_TURN = (int) (OutboundPeer.TURN_BYTES / PAGE_BYTES);
    private static final int REQUESTS_MAX = 8;

    private record Memory(RegionDescriptor descriptor, MemorySegment memory) implements Region {
        @Override
        public void deregister() {}
    }

    /** Takes one page a post. */
    private static final class FakePath implements Endpoint {
        final List<Integer> pages = new ArrayList<>();
        final List<Long> postIds = new ArrayList<>();
        int room = Integer.MAX_VALUE;

        @Override
        public int post(WriteBatch batch, long postId) {
            if (pages.size() >= room) {
                return 0;
            }
            batch.limit(1, Long.MAX_VALUE, Long.MAX_VALUE);
            pages.add(batch.firstUnit());
            postIds.add(postId);
            return 1;
        }
    }

    private final Arena arena = Arena.ofConfined();
    private final Memory memory = new Memory(
            new RegionDescriptor(1, PAGE_BYTES, RegionDescriptor.VERSION, false), arena.allocate(PAGE_BYTES));
    private final CompletionRing completions = new CompletionRing(64, () -> {});
    private final List<Long> completed = new ArrayList<>();
    private LinkEvents events;
    private final OutboundPeer peer = new OutboundPeer(
            1,
            "peer",
            new byte[Admission.KEY_LENGTH_BYTES],
            List.of(new OutboundPeer.Road(new FakeDomain(), new TransportAddress("fake", "there"))),
            REQUESTS_MAX,
            new Allowances(new RegionTable(new FfmLibC())),
            completions,
            new Figures(),
            () -> 0);

    @AfterEach
    void close() {
        arena.close();
    }

    private FakePath path() {
        FakePath path = new FakePath();
        events.onPathOpened(path);
        return path;
    }

    private void open() {
        peer.connect(0);
        events.onReady();
    }

    private void submit(int pageCount, long cookie) {
        PageList pages = new PageList(new int[pageCount], 0, pageCount, PAGE_BYTES, 0);
        assertThat(peer.writes()
                        .offer(
                                new PagedWrites(
                                        memory, pages, memory.descriptor(), pages, PAGE_BYTES, () -> Imm.of(1, 0), 1),
                                cookie))
                .isTrue();
    }

    private List<Long> completed() {
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    if (kind == CompletionRing.WRITE_COMPLETED) {
                        completed.add(cookie);
                    }
                },
                64);
        return completed;
    }

    @Test
    void shouldLetOtherPeersHaveTheWorkerWhenItsTurnIsOver() {
        open();
        FakePath path = path();
        submit(2 * PAGES_PER_TURN + 1, 1);
        assertThat(List.of(peer.doWork(0), peer.doWork(0), peer.doWork(0), peer.doWork(0)))
                .containsExactly(PAGES_PER_TURN, PAGES_PER_TURN, 1, 0);
        path.postIds.forEach(events::onSent);
        assertThat(completed()).containsExactly(1L);
    }

    @Test
    void shouldPostTheNextSliceToThePathThatHasRoom() {
        open();
        FakePath full = path();
        full.room = 1;
        FakePath free = path();
        submit(2 * PAGES_PER_TURN, 1);
        while (peer.doWork(0) > 0) {}
        assertThat(full.pages).hasSize(1);
        assertThat(free.pages).hasSize(2 * PAGES_PER_TURN - 1);
    }

    @Test
    void shouldPostWhatALostPathHadToTheOthersAndHearNoMoreOfIt() {
        open();
        FakePath lost = path();
        submit(PAGES_PER_TURN, 1);
        peer.doWork(0);
        events.onSent(lost.postIds.getFirst());
        FakePath other = path();
        events.onPathLost(lost);
        peer.doWork(0);
        assertThat(other.pages).isEqualTo(lost.pages.subList(1, PAGES_PER_TURN));
        lost.postIds.forEach(events::onSent);
        assertThat(completed()).as("only the other path's word counts").isEmpty();
        other.postIds.forEach(events::onSent);
        assertThat(completed()).containsExactly(1L);
    }

    @Test
    void shouldKeepWhatWaitsWhileThereIsNoPath() {
        open();
        submit(1, 1);
        assertThat(peer.doWork(0)).isZero();
        FakePath path = path();
        assertThat(peer.doWork(0)).isEqualTo(1);
        path.postIds.forEach(events::onSent);
        assertThat(completed()).containsExactly(1L);
    }

    private final class FakeDomain implements Domain {
        @Override
        public String name() {
            return "fake";
        }

        @Override
        public String location() {
            return "here";
        }

        @Override
        public RemoteKey register(Region region, int memfd) {
            return null;
        }

        @Override
        public OutboundLink connect(
                String location, byte[] key, MessageQueue messages, LinkEvents linkEvents, long nowNs) {
            events = linkEvents;
            return new OutboundLink() {
                @Override
                public int doWork(long nowNs) {
                    return 0;
                }

                @Override
                public void close() {}
            };
        }

        @Override
        public int poll(long nowNs) {
            return 0;
        }

        @Override
        public void close() {}
    }
}
