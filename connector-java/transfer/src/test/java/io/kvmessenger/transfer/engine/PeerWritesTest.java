package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

final class PeerWritesTest {
    private static final int CAPACITY = 4;
    private static final int PAGE_BYTES = 64;
    private static final int PAGES_MAX = 5;
    private static final int ROUNDS = 20_000;
    private static final RegionDescriptor REGION =
            new RegionDescriptor(1, PAGE_BYTES * PAGES_MAX, RegionDescriptor.VERSION, false);
    private static final List<TrafficClass> CLASSES = List.of(TrafficClass.values());
    private static final Endpoint PATH = (batch, postId) -> 0;
    private static final Endpoint OTHER_PATH = (batch, postId) -> 0;

    private final OutboundPeerBed.Registered memory =
            new OutboundPeerBed.Registered(REGION, Memory.host(Arena.ofAuto().allocate(REGION.lengthBytes())));
    private final List<Long> ended = new ArrayList<>();
    private final PeerWrites writes = new PeerWrites(CAPACITY, new WriteLedger.Completions() {
        @Override
        public void onCompleted(int origin, long cookie) {
            ended.add(cookie);
        }

        @Override
        public void onFailed(int origin, long cookie, TransferFault fault, String detail) {
            ended.add(-cookie);
        }
    });
    private final WriteBatch batch = new WriteBatch();
    private final LinkLoad load = new LinkLoad(LinkBoard.ofEngine(), 1, 0.2, 0);
    private final PathLink link = new PathLink(PATH, load);

    private TransferRequest pages(TrafficClass trafficClass, int count) {
        var list = new TransferRequest.PageList(new int[count], 0, count, PAGE_BYTES, 0);
        return new TransferRequest.PagedWrites(
                memory, list, REGION, list, PAGE_BYTES, new ClassedWindow(trafficClass), 1);
    }

    @Test
    void shouldOfferTheMostUrgentFirst() {
        long cookie = 1;
        for (TrafficClass each : List.of(TrafficClass.BULK, TrafficClass.NORMAL, TrafficClass.URGENT)) {
            writes.offer(pages(each, 1), cookie++, WriteLedger.OF_USER);
        }
        for (TrafficClass each : TrafficClass.values()) {
            assertThat(writes.next(batch, link)).isTrue();
            assertThat(writes.offered()).isEqualTo(each);
            long id = writes.nextPostId();
            writes.posted(batch, PATH);
            writes.sent(id);
        }
        assertThat(writes.hasWork()).isFalse();
        assertThat(ended).containsExactly(3L, 2L, 1L);
    }

    @ParameterizedTest
    @EnumSource
    void shouldHaveRoomForAClassWhileOthersAreFull(TrafficClass empty) {
        for (TrafficClass full : TrafficClass.values()) {
            while (full != empty && writes.hasRoom(full)) {
                writes.offer(pages(full, 1), 1, WriteLedger.OF_USER);
            }
        }
        assertThat(writes.hasRoom(empty)).isTrue();
        assertThat(writes.offer(pages(empty, 1), 2, WriteLedger.OF_USER)).isTrue();
    }

    @Test
    void shouldOfferNothingOfAClassThatHasToYield() {
        writes.offer(pages(TrafficClass.BULK, 1), 1, WriteLedger.OF_USER);
        load.onQueued(TrafficClass.URGENT.rank(), 1, 0);
        load.look(1);
        assertThat(writes.next(batch, link)).isFalse();
        assertThat(writes.hasWork()).isTrue();
        load.onQueued(TrafficClass.URGENT.rank(), -1, 2);
        load.look(3);
        assertThat(writes.next(batch, link)).isTrue();
    }

    @Test
    void shouldFailAllClasses() {
        for (TrafficClass each : TrafficClass.values()) {
            writes.offer(pages(each, 2), 1 + each.rank(), WriteLedger.OF_USER);
        }
        writes.next(batch, link);
        writes.posted(batch, PATH);
        assertThat(writes.failAll(TransferFault.PEER_CLOSED, "gone")).isEqualTo(TrafficClass.COUNT);
        assertThat(ended).containsExactlyInAnyOrder(-1L, -2L, -3L);
        assertThat(writes.queuedBytes()).isZero();
        assertThat(writes.waitingBytes()).isZero();
    }

    /** Posts, losses of paths, splits and completions at random: every write ends once, and all bytes are accounted for. */
    @Test
    void shouldEndEveryWriteOnceWhateverIsDone() {
        Random random = new Random(1);
        List<Long> underWay = new ArrayList<>();
        List<Endpoint> by = new ArrayList<>();
        long last = 0;
        for (int round = 0; round < ROUNDS; round++) {
            TrafficClass drawn = CLASSES.get(random.nextInt(CLASSES.size()));
            if (random.nextInt(3) == 0 && writes.hasRoom(drawn)) {
                writes.offer(pages(drawn, 1 + random.nextInt(PAGES_MAX)), ++last, WriteLedger.OF_USER);
            } else if (random.nextInt(50) == 0) {
                Endpoint lost = random.nextBoolean() ? PATH : OTHER_PATH;
                assertThat(writes.isUnderWay(lost)).isEqualTo(by.contains(lost));
                writes.reclaim(lost);
                for (int i = by.size() - 1; i >= 0; i--) {
                    if (by.get(i) == lost) {
                        by.remove(i);
                        underWay.remove(i);
                    }
                }
            } else if (random.nextBoolean()) {
                post(random, underWay, by);
            } else if (!underWay.isEmpty()) {
                int at = random.nextInt(underWay.size());
                by.remove(at);
                writes.sent(underWay.remove(at));
            }
        }
        while (writes.hasWork() || !underWay.isEmpty()) {
            post(random, underWay, by);
            while (!underWay.isEmpty()) {
                writes.sent(underWay.removeLast());
            }
        }
        assertThat(ended).doesNotHaveDuplicates().hasSize((int) last);
        assertThat(writes.queuedBytes()).isZero();
        assertThat(writes.endedBytes()).isPositive();
    }

    private void post(Random random, List<Long> underWay, List<Endpoint> by) {
        if (!writes.next(batch, link)) {
            return;
        }
        long id = writes.nextPostId();
        batch.limit(1 + random.nextInt(PAGES_MAX), Long.MAX_VALUE, Long.MAX_VALUE);
        Endpoint path = random.nextBoolean() ? PATH : OTHER_PATH;
        int taken = batch.unitCount();
        writes.posted(batch, path);
        underWay.add(id);
        by.add(path);
        if (taken > 1 && random.nextBoolean() && writes.canSplit()) {
            underWay.add(writes.split(id, 1 + random.nextInt(taken - 1)));
            by.add(path);
        }
    }
}
