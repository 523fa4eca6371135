package io.kvmessenger.transfer.verbs;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.transfer.TransferCounter;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Both ends of a path over devices that fail as they are told: what is told of each post, and what is counted. */
final class VerbsPathsTest {
    private static final int ALL = 1000;
    private static final long SETTLE_LIMIT_NS = 10_000_000_000L;

    private final PathPair paths = new PathPair();

    @AfterEach
    void close() {
        paths.close();
        assertThat(paths.library.openPairs()).isZero();
        assertThat(paths.library.openDevices).isEmpty();
    }

    /** Posts of two pages each that do not follow each other, ids from 0 on. */
    private void post(int count) {
        for (int i = 0; i < count; i++) {
            assertThat(paths.postFirst(i, 4 * i, 4 * i + 2)).isEqualTo(2);
        }
    }

    @Test
    void shouldGiveAllTrafficTheFabricsClass() {
        paths.opened();
        assertThat(paths.library.services)
                .containsOnly(List.of(3), List.of(5, 104))
                .hasSize(2 * paths.library.openPairs());
    }

    @Test
    void shouldOpenOnceAnImmediateHasComeThrough() {
        paths.accept();
        paths.turn();
        assertThat(paths.events).isEmpty();
        paths.library.deliver(1);
        paths.turn();
        assertThat(paths.events).containsExactly("ready", "opened");
        assertThat(paths.targetChannel.events).containsExactly("ready");
        assertThat(paths.port.arrivedWeight).isZero();
        assertThat(paths.sent).isEmpty();
    }

    @Test
    void shouldGiveUpAPeerThatDoesNotAnswer() {
        paths.nowNs = PathPair.CONNECT_LIMIT_NS + 1;
        paths.turn();
        assertThat(paths.events)
                .containsExactly("failed UNREACHABLE no answer over verbs within connect_limit_seconds");
    }

    @Test
    void shouldCountAChainByItsLastWrite() {
        paths.opened();
        assertThat(paths.postFirst(5, 1, 2, 3, 7, 9, 10)).isEqualTo(6);
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.sent).containsExactly(5L);
        assertThat(paths.port.arrivedWeight).isEqualTo(6);
        assertThat(IntStream.of(1, 2, 3, 7, 9, 10)).allMatch(paths::arrived);
        assertThat(IntStream.of(4, 5, 6, 8, 11)).noneMatch(paths::arrived);
    }

    /** Slot 1, generation 0, weight 4 is 00100004: in the memory of a request the highest byte comes first. */
    @Test
    void shouldPostAWriteForEachRunAndAnImmediateOfAllInTheNetworksOrder() {
        paths.opened();
        assertThat(paths.postFirst(0, 1, 2, 7, 9)).isEqualTo(4);
        assertThat(paths.library.underWay())
                .containsExactly("write 128", "write 64", "write with imm 64 04001000 signalled");
        paths.library.deliver(1);
        assertThat(paths.postImmediate(1)).isEqualTo(1);
        assertThat(paths.library.underWay()).containsExactly("write with imm 0 01001000 signalled");
    }

    /** The device reads no memory that it was not told of. */
    @Test
    void shouldRegisterWhereItsPagesAreGatheredOnce() {
        paths.opened();
        assertThat(paths.postFirst(0, 511)).isEqualTo(1);
        int before = paths.library.objects();
        MemorySegment gathered = paths.arena.allocate(paths.source.byteSize()).fill((byte) 7);
        assertThat(paths.postGathered(1, gathered, 2)).isEqualTo(2);
        assertThat(paths.postGathered(2, gathered, 4)).isEqualTo(4);
        assertThat(paths.library.objects() - before).isEqualTo(1);
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.sent).containsExactly(0L, 1L, 2L);
        long lengthBytes = 4 * PathPair.PAGE_BYTES;
        assertThat(paths.memory.asSlice(0, lengthBytes).mismatch(gathered.asSlice(0, lengthBytes)))
                .isEqualTo(-1);
    }

    @Test
    void shouldEndWhereTheDeviceRefusesTheMemoryThatPagesAreGatheredIn() {
        paths.opened();
        assertThat(paths.postFirst(0, 511)).isEqualTo(1);
        paths.library.refusedCall = "ibv_reg_mr";
        assertThat(paths.postGathered(1, paths.arena.allocate(paths.source.byteSize()), 2))
                .isZero();
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.events.getLast()).contains("of what was gathered: nic cannot lock", "ulimit -l");
        assertThat(paths.sent).containsExactly(0L);
    }

    @Test
    void shouldTakeNoMoreThanItsQueueHasRoomFor() {
        paths.opened();
        int[] pages =
                IntStream.range(0, PathPair.PAGE_COUNT / 2).map(i -> 2 * i).toArray();
        int writes = 0;
        int posts = 0;
        for (int taken = paths.postFirst(0, pages); taken > 0; taken = paths.post(posts, pages)) {
            assertThat(taken).isEqualTo(SendQueue.CHAIN_MAX);
            writes += taken;
            posts++;
        }
        assertThat(writes).isEqualTo(256);
        paths.library.deliver(1);
        paths.turn();
        assertThat(paths.post(posts, pages)).isEqualTo(SendQueue.CHAIN_MAX);
        assertThat(paths.events).containsExactly("ready", "opened");
    }

    @Test
    void shouldKeepWhatTheDeviceHasNoRoomFor() {
        paths.opened();
        post(1);
        paths.library.postErrno = Errno.ENOMEM;
        assertThat(paths.post(1, 4, 6)).isZero();
        assertThat(paths.post(1, 4, 6)).isEqualTo(2);
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.sent).containsExactly(0L, 1L);
        assertThat(paths.events).containsExactly("ready", "opened");
    }

    /** The part would read its source, and nothing would tell of its end. */
    @Test
    void shouldFailWhenTheDeviceTakesAPartOfAChain() {
        paths.opened();
        post(1);
        paths.library.postErrno = Errno.ENOMEM;
        paths.library.takenBefore = 1;
        assertThat(paths.post(1, 4, 6)).isZero();
        paths.turn();
        paths.turn();
        assertThat(paths.sent).isEmpty();
        assertThat(paths.events.subList(2, 4)).containsExactly("lost", "failed DISCONNECTED nic takes no writes: EIO");
    }

    @Test
    void shouldReportOfEachPostWhetherItCameThroughWhenAPathFails() {
        paths.opened();
        post(5);
        paths.library.deliver(1);
        paths.turn();
        // Two more come through whose acknowledgements are lost, the last two do not.
        paths.library.acknowledges = false;
        paths.library.deliver(2);
        paths.library.exceedRetries();
        paths.turn();
        paths.turn();
        assertThat(paths.sent).containsExactly(0L, 1L, 2L);
        assertThat(paths.port.arrivedWeight).isEqualTo(6);
        assertThat(paths.events.subList(2, 4))
                .containsExactly(
                        "lost", "failed DISCONNECTED nic reports: status in words (status 12, the device's code 0)");
        assertThat(paths.target.isOver()).isTrue();
        assertThat(paths.targetChannel.events).containsExactly("ready");
    }

    /** Acknowledged, but never reported to the target: to leave it out would make the target wait for ever. */
    @Test
    void shouldNotGoOnWhenTheTargetLacksWhatWasAcknowledged() {
        paths.opened();
        post(2);
        paths.library.reports = false;
        paths.library.deliver(1);
        paths.turn();
        assertThat(paths.sent).containsExactly(0L);
        paths.library.exceedRetries();
        paths.turn();
        paths.turn();
        assertThat(paths.events).hasSize(3).doesNotContain("lost");
        assertThat(paths.events.getLast()).startsWith("failed").contains("acknowledged", "lacks");
        assertThat(paths.path().mayOweDelivery()).isTrue();
    }

    @Test
    void shouldNotGoOnWhenTheTargetDoesNotSayWhatCameThrough() {
        paths.opened();
        post(1);
        paths.targetHears = false;
        paths.library.exceedRetries();
        paths.turn();
        assertThat(paths.events).hasSize(2);
        assertThat(paths.post(1, 0)).as("no more posts").isZero();
        paths.nowNs = SETTLE_LIMIT_NS + 1;
        paths.turn();
        assertThat(paths.events.subList(2, 3))
                .allMatch(event ->
                        event.startsWith("failed") && event.endsWith("the peer has not said what came through"));
        assertThat(paths.path().mayOweDelivery()).isTrue();
    }

    /** Until all receives are back something may still come. */
    @Test
    void shouldNotSayWhatCameThroughBeforeNothingElseCan() {
        paths.opened();
        post(1);
        paths.library.givesBack = false;
        paths.library.exceedRetries();
        paths.turn();
        paths.turn();
        assertThat(paths.events).hasSize(2);
        assertThat(paths.target.isOver()).isFalse();
        paths.nowNs = SETTLE_LIMIT_NS + 1;
        paths.target.poll(paths.nowNs);
        assertThat(paths.targetChannel.events.getLast()).startsWith("DISCONNECTED");
    }

    @Test
    void shouldFailWhenCompletionsCannotBeRead() {
        paths.opened();
        post(1);
        paths.library.unreadable = true;
        paths.writer.doWork(paths.nowNs);
        paths.library.unreadable = false;
        paths.turn();
        paths.turn();
        assertThat(paths.events.getLast()).isEqualTo("failed DISCONNECTED nic cannot read its completions: EIO");
        assertThat(paths.events).contains("lost");
    }

    /** More than twice as many as it posts ahead. */
    @Test
    void shouldPostReceivesAnewForWhatWasTaken() {
        paths.opened();
        int posts = 0;
        for (int round = 0; round < 20; round++) {
            while (paths.postImmediate(posts) > 0) {
                posts++;
            }
            paths.library.deliver(ALL);
            paths.turn();
        }
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(posts).isGreaterThan(2 * 1024);
        assertThat(paths.port.arrivedWeight).isEqualTo(posts);
        assertThat(paths.sent).hasSize(posts).isSorted();
    }

    @Test
    void shouldWaitWhileTheTargetDoesNotLook() {
        paths.opened();
        int posts = 0;
        for (int round = 0; round < 10; round++) {
            while (paths.postImmediate(posts) > 0) {
                posts++;
            }
            paths.library.deliver(ALL);
            paths.writer.doWork(paths.nowNs);
        }
        assertThat(posts).isGreaterThan(paths.sent.size());
        assertThat(paths.port.arrivedWeight).isZero();
        for (int round = 0; round < 10; round++) {
            paths.turn();
            paths.library.deliver(ALL);
        }
        paths.turn();
        assertThat(paths.port.arrivedWeight).isEqualTo(posts);
        assertThat(paths.sent).hasSize(posts);
        assertThat(paths.events).containsExactly("ready", "opened");
    }

    @Test
    void shouldDismissAPeerThatSendsMessages() {
        paths.opened();
        paths.library.deliverMessage();
        paths.target.poll(paths.nowNs);
        assertThat(paths.targetChannel.events.getLast()).isEqualTo("PROTOCOL the peer sent what is no write");
        assertThat(paths.figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
    }
}
