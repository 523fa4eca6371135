package io.kvmessenger.transfer.verbs;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.spi.Endpoint;
import java.lang.foreign.MemorySegment;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Paths between several devices of both sides: which there are, what becomes of the others when one is lost, and who may say what. */
final class VerbsNetworksTest {
    private static final int ALL = 1000;
    private static final byte[] TOO_SHORT = new byte[1];

    private PathPair paths;

    @AfterEach
    void close() {
        paths.library.cut.clear();
        paths.library.refusedCall = "";
        paths.close();
        assertThat(paths.library.objects()).isZero();
        assertThat(paths.library.openDevices).isEmpty();
    }

    /** What device i has under way when each network's path has one post. */
    private void postOneToEach() {
        paths.paths.forEach((network, path) -> {
            int page = 4 * network;
            assertThat(paths.postFirstTo(path, network, page, page + 2)).isEqualTo(2);
        });
    }

    private void restOver() {
        paths.nowNs += VerbsLane.REST_MAX_NS;
        paths.turn();
    }

    @ParameterizedTest
    @CsvSource({"1, 1, 1", "2, 2, 2", "2, 4, 4", "4, 2, 4", "3, 2, 3", "1, 3, 3", "9, 1, 8", "1, 12, 8"})
    void shouldOpenAPathByEachDeviceOfEitherSide(int writers, int targets, int expected) {
        paths = new PathPair(writers, targets).opened();
        assertThat(paths.paths.keySet())
                .containsExactlyElementsOf(IntStream.range(0, expected).boxed().toList());
        assertThat(paths.events).filteredOn("ready"::equals).hasSize(1);
        assertThat(paths.targetChannel.events).containsExactly("ready");
        assertThat(paths.figures.of(TransferCounter.PATHS_OPENED)).isEqualTo(2L * expected);
        postOneToEach();
        for (int i = 0; i < Math.min(writers, expected); i++) {
            assertThat(paths.library.busyWriters("w" + i)).isPositive();
        }
        // Each device looks at the keys: those of another one would not do.
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.sent).hasSize(expected);
        assertThat(paths.port.arrivedWeight).isEqualTo(2L * expected);
        assertThat(IntStream.range(0, expected).map(i -> 4 * i)).allMatch(paths::arrived);
    }

    @Test
    void shouldReportOnlyTheLostPathAndOpenItAgain() {
        paths = new PathPair(2, 2).opened();
        Endpoint lost = paths.paths.get(1);
        postOneToEach();
        paths.library.cut.add("w1");
        paths.library.deliver(ALL);
        paths.library.exceedRetries();
        paths.turn();
        assertThat(paths.sent).containsExactly(0L);
        assertThat(paths.events).containsExactly("ready", "opened", "opened", "lost");
        assertThat(paths.postTo(lost, 9, 1)).isZero();
        assertThat(paths.post(2, 9)).as("the other goes on").isEqualTo(1);
        paths.library.cut.clear();
        restOver();
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.events).endsWith("opened");
        assertThat(paths.paths.get(1)).isNotSameAs(lost);
        assertThat(paths.postFirstTo(paths.paths.get(1), 3, 4, 6)).isEqualTo(2);
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.sent).containsExactly(0L, 2L, 3L);
        assertThat(paths.port.arrivedWeight).isEqualTo(2 + 1 + 2);
        assertThat(paths.targetChannel.events).containsExactly("ready");
    }

    /** What came through without an acknowledgement is not told as lost: posted again it would count twice. */
    @Test
    void shouldKnowOfEachPostOfTheLostPathWhetherItCameThrough() {
        paths = new PathPair(2, 2).opened();
        Endpoint lost = paths.paths.get(1);
        paths.postFirstTo(lost, 1, 0, 2);
        paths.postTo(lost, 2, 4, 6);
        paths.library.acknowledges = false;
        paths.library.deliver(1);
        paths.library.cut.add("t1");
        paths.library.exceedRetries();
        paths.turn();
        assertThat(paths.sent).containsExactly(1L);
        assertThat(paths.events).endsWith("lost");
        assertThat(paths.port.arrivedWeight).isEqualTo(2);
    }

    @Test
    void shouldFailWhenTheLastPathIsLost() {
        paths = new PathPair(2, 1).opened();
        postOneToEach();
        paths.library.cut.add("t0");
        paths.library.exceedRetries();
        paths.turn();
        paths.turn();
        assertThat(paths.events.subList(3, 6)).startsWith("lost", "lost");
        assertThat(paths.events.getLast()).startsWith("failed DISCONNECTED w");
        assertThat(paths.library.openPairs()).isZero();
    }

    /** An attempt that fails is given up, and made again later; the target has nothing left of it meanwhile. */
    @Test
    void shouldServeByTheOthersWhileOneCannotBeOpened() {
        paths = new PathPair(2, 2);
        paths.library.cut.add("w0");
        paths.opened();
        assertThat(paths.paths).containsOnlyKeys(1);
        assertThat(paths.events).containsExactly("ready", "opened");
        paths.library.exceedRetries();
        paths.turn();
        assertThat(paths.library.openPairs()).isEqualTo(2);
        paths.library.cut.clear();
        restOver();
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.paths).containsOnlyKeys(0, 1);
        assertThat(paths.targetChannel.events).containsExactly("ready");
    }

    @Test
    void shouldGiveUpAnAttemptOfWhichNothingIsHeard() {
        paths = new PathPair(2, 2);
        paths.library.cut.add("w1");
        paths.opened();
        paths.nowNs = PathPair.CONNECT_LIMIT_NS + 1;
        paths.turn();
        assertThat(paths.library.openPairs()).isEqualTo(2);
        assertThat(paths.events).containsExactly("ready", "opened");
    }

    @Test
    void shouldGoOnWithoutADeviceThatRefusesQueuePairs() {
        paths = new PathPair(2, 2);
        paths.library.refusedCall = "ibv_create_qp";
        paths.library.refusingDevice = "t1";
        paths.opened();
        assertThat(paths.paths).containsOnlyKeys(0);
        paths.library.refusedCall = "";
        restOver();
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.paths).containsOnlyKeys(0, 1);
    }

    /** Which keeps a thread of its own for up to a second, and not the worker. */
    @ParameterizedTest
    @CsvSource({"1", "3"})
    void shouldServeByTheOthersWhileTheNetworkDoesNotAnswerForOne(int answers) {
        paths = new PathPair(2, 2);
        paths.answers = answers;
        paths.opened();
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.paths).hasSize(answers / 2);
        paths.answer();
        paths.turn();
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.paths).containsOnlyKeys(0, 1);
        postOneToEach();
    }

    @ParameterizedTest
    @CsvSource({"0", "1"})
    void shouldNotTouchAQueuePairThatWasGivenUpBeforeTheNetworkAnswered(int answers) {
        paths = new PathPair(1, 1);
        paths.answers = answers;
        paths.opened();
        paths.nowNs = PathPair.CONNECT_LIMIT_NS + 1;
        paths.turn();
        assertThat(paths.events).singleElement().asString().startsWith("failed UNREACHABLE");
        assertThat(paths.library.openPairs()).isZero();
        paths.answer();
    }

    @Test
    void shouldSayWhatTheTargetRefused() {
        paths = new PathPair(2, 2);
        paths.library.refusedCall = "ibv_create_qp";
        paths.library.refusingDevice = "t1";
        paths.library.cut.add("w0");
        paths.opened();
        paths.library.exceedRetries();
        paths.turn();
        assertThat(paths.events).singleElement().asString().startsWith("failed UNREACHABLE ");
    }

    @Test
    void shouldHoldNoMoreThanItsLimit() {
        paths = new PathPair(2, 2).opened();
        Endpoint path = paths.paths.get(1);
        paths.postFirstTo(path, 1, 0, 2);
        assertThat(path.heldBytes()).isEqualTo(2 * PathPair.PAGE_BYTES);
        assertThat(paths.path().heldBytes()).isZero();
        path.limitUnsent(2 * PathPair.PAGE_BYTES);
        assertThat(paths.postTo(path, 2, 4)).isZero();
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(path.heldBytes()).isZero();
        assertThat(paths.postTo(path, 2, 4)).isEqualTo(1);
    }

    @Test
    void shouldSettleAPathThatIsGivenUp() {
        paths = new PathPair(2, 2).opened();
        paths.postFirstTo(paths.paths.get(1), 1, 0, 2);
        paths.paths.get(1).giveUp();
        paths.turn();
        assertThat(paths.events).endsWith("lost");
        assertThat(paths.sent).isEmpty();
        assertThat(paths.library.openPairs()).isEqualTo(2);
    }

    @Test
    void shouldIgnoreEventsOfAnEarlierPath() {
        paths = new PathPair(2, 2).opened();
        paths.paths.get(1).giveUp();
        paths.turn();
        restOver();
        paths.targetSays(VerbsRecord.READY, new PathName(1, 0).with(MemorySegment.NULL));
        assertThat(paths.events).containsExactly("ready", "opened", "opened", "lost");
    }

    @ParameterizedTest
    @CsvSource({"0", "1", "2"})
    void shouldNotBearATargetThatSaysWhatCannotBe(int which) {
        paths = new PathPair(2, 2).opened();
        switch (which) {
            case 0 -> paths.targetSays(VerbsRecord.DEVICES, Nic.encodeCount(paths.targetNics));
            case 1 -> paths.targetSays(VerbsRecord.READY, MemorySegment.ofArray(TOO_SHORT));
            default -> paths.targetSays(VerbsRecord.READY, new PathName(7, 0).with(MemorySegment.NULL));
        }
        assertThat(paths.events.getLast()).startsWith("failed PROTOCOL");
        assertThat(paths.library.openPairs()).isEqualTo(2);
    }

    @ParameterizedTest
    @CsvSource({"0", "1", "2", "3"})
    void shouldDismissAWriterThatSaysWhatCannotBe(int which) {
        paths = new PathPair(2, 2).opened();
        PathName first = new PathName(0, 0);
        switch (which) {
            case 0 -> paths.writerSays(VerbsRecord.PATH_WANTED, first.with(MemorySegment.NULL));
            case 1 -> paths.writerSays(VerbsRecord.FAILED, MemorySegment.ofArray(TOO_SHORT));
            case 2 -> paths.writerSays(VerbsRecord.FAILED, new PathName(0, 4).with(MemorySegment.NULL));
            default -> paths.writerSays(VerbsRecord.SETTLED, first.with(MemorySegment.NULL));
        }
        assertThat(paths.targetChannel.events.getLast()).startsWith("PROTOCOL");
        assertThat(paths.figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
    }

    /** Its attempt to connect may have ended by itself when the second record comes. */
    @Test
    void shouldDismissAWriterThatWantsAPathThatItHasHad() {
        paths = new PathPair(2, 2).opened();
        PathName second = new PathName(1, 0);
        paths.writerSays(VerbsRecord.PATH_CLOSED, second.with(MemorySegment.NULL));
        assertThat(paths.figures.of(TransferCounter.PATHS_REJECTED)).isZero();
        PairName pair = new PairName(1, 0, 3, 0, true, new byte[PairName.GID_BYTES]);
        paths.writerSays(VerbsRecord.PATH_WANTED, second.with(pair.encode()));
        assertThat(paths.targetChannel.events.getLast()).startsWith("PROTOCOL");
        assertThat(paths.figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
    }
}
