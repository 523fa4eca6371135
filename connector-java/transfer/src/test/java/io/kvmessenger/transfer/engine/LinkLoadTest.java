package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.withinPercentage;

import io.kvmessenger.transfer.TrafficClass;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Workers that share a link through one board, each with a load of its own. */
final class LinkLoadTest {
    private static final double SHARE = 0.2;
    private static final long LINK = 7;
    private static final long MANY = 1L << 40;
    private static final long STEP_NS = 100_000;

    private final LinkBoard board = LinkBoard.ofEngine();
    private long nowNs = 5;
    private final LinkLoad one = new LinkLoad(board, LINK, SHARE, nowNs);
    private final LinkLoad other = new LinkLoad(board, LINK, SHARE, nowNs);

    /** Each pair of classes, at one worker and at two. */
    static Stream<Arguments> pairs() {
        return Stream.of(TrafficClass.values())
                .flatMap(first -> Stream.of(TrafficClass.values())
                        .flatMap(second -> Stream.of(true, false).map(same -> Arguments.of(first, second, same))));
    }

    private LinkLoad with(boolean same) {
        return same ? one : other;
    }

    private void pass(long lengthNs) {
        for (long endNs = nowNs + lengthNs; nowNs < endNs; ) {
            nowNs = Math.min(nowNs + STEP_NS, endNs);
            one.look(nowNs);
            other.look(nowNs);
        }
    }

    @ParameterizedTest
    @MethodSource("pairs")
    void shouldHaveOnlyTheLessUrgentYield(TrafficClass first, TrafficClass second, boolean same) {
        one.onQueued(first.rank(), 1, nowNs);
        with(same).onQueued(second.rank(), 1, nowNs);
        pass(LinkLoad.LOOK_NS);
        assertThat(one.isContended(first)).isEqualTo(second.rank() < first.rank());
        assertThat(with(same).isContended(second)).isEqualTo(first.rank() < second.rank());
        assertThat(one.allowedBytes(TrafficClass.URGENT)).isEqualTo(Long.MAX_VALUE);
    }

    @ParameterizedTest
    @MethodSource("pairs")
    void shouldYieldNoLongerThanTheOthersHaveSomething(TrafficClass first, TrafficClass second, boolean same) {
        one.onQueued(first.rank(), MANY, nowNs);
        with(same).onQueued(second.rank(), MANY, nowNs);
        pass(LinkLoad.LOOK_NS);
        with(same).onQueued(second.rank(), -MANY, nowNs);
        pass(LinkLoad.LOOK_NS);
        assertThat(one.isContended(first)).isFalse();
    }

    @ParameterizedTest
    @MethodSource("pairs")
    void shouldNotWaitForWritesThatDoNotMove(TrafficClass first, TrafficClass second, boolean same) {
        one.onQueued(first.rank(), MANY, nowNs);
        with(same).onQueued(second.rank(), MANY, nowNs);
        pass(LinkLoad.SILENT_LIMIT_NS - 1);
        one.onEnded(first.rank(), 1, nowNs); // its own progress is not theirs
        assertThat(one.isContended(first)).isEqualTo(second.rank() < first.rank());
        pass(LinkLoad.LOOK_NS);
        assertThat(one.isContended(first)).isFalse();
        with(same).onEnded(second.rank(), 1, nowNs);
        pass(LinkLoad.LOOK_NS);
        assertThat(one.isContended(first)).isEqualTo(second.rank() < first.rank());
    }

    @Test
    void shouldKeepAShareOfTheLinksRateForAClassThatYields() {
        one.onQueued(TrafficClass.BULK.rank(), MANY, nowNs);
        other.onQueued(TrafficClass.URGENT.rank(), MANY, nowNs);
        long ratePerMs = 100_000;
        given(one, 2_000, ratePerMs);
        long given = given(one, 1_000, ratePerMs);
        assertThat((double) given).isCloseTo(expected(SHARE, ratePerMs, 1_000), withinPercentage(5));
    }

    @Test
    void shouldDivideTheShareByTheWorkersThatYield() {
        LinkLoad third = new LinkLoad(board, LINK, SHARE, nowNs);
        one.onQueued(TrafficClass.BULK.rank(), MANY, nowNs);
        third.onQueued(TrafficClass.BULK.rank(), MANY, nowNs);
        other.onQueued(TrafficClass.URGENT.rank(), MANY, nowNs);
        long ratePerMs = 100_000;
        given(one, 2_000, ratePerMs);
        third.onEnded(TrafficClass.BULK.rank(), 1, nowNs);
        long given = given(one, 900, ratePerMs);
        assertThat((double) given).isCloseTo(expected(SHARE / 2, ratePerMs, 900), withinPercentage(5));
    }

    /** The share is of what all move together. */
    private static double expected(double share, long othersPerMs, int millis) {
        return share / (1 - share) * othersPerMs * millis;
    }

    /** One worker takes all that it is allowed, while another moves urgent bytes. */
    private long given(LinkLoad yielding, int millis, long urgentPerMs) {
        long sum = 0;
        for (int ms = 0; ms < millis; ms++) {
            other.onEnded(TrafficClass.URGENT.rank(), urgentPerMs, nowNs);
            pass(1_000_000);
            long bytes = yielding.allowedBytes(TrafficClass.BULK);
            assertThat(bytes).isLessThan(Long.MAX_VALUE);
            yielding.onGiven(TrafficClass.BULK, bytes);
            yielding.onEnded(TrafficClass.BULK.rank(), 0, nowNs);
            sum += bytes;
        }
        return sum;
    }

    @Test
    void shouldOweWhatWasGivenTooMuch() {
        one.onQueued(TrafficClass.BULK.rank(), MANY, nowNs);
        one.onQueued(TrafficClass.URGENT.rank(), MANY, nowNs);
        pass(1_000_000);
        pass(1_000_000);
        long allowed = one.allowedBytes(TrafficClass.BULK);
        assertThat(allowed).isPositive();
        one.onGiven(TrafficClass.BULK, allowed + (4 << 20));
        pass(100_000_000);
        assertThat(one.allowedBytes(TrafficClass.BULK)).isZero();
    }

    @Test
    void shouldNotSeeWhatAnotherLinkHas() {
        LinkLoad elsewhere = new LinkLoad(board, LINK + 1, SHARE, nowNs);
        one.onQueued(TrafficClass.BULK.rank(), MANY, nowNs);
        elsewhere.onQueued(TrafficClass.URGENT.rank(), MANY, nowNs);
        pass(LinkLoad.LOOK_NS);
        assertThat(one.isContended(TrafficClass.BULK)).isFalse();
    }

    @Test
    void shouldBeSeenNoMoreOnceClosed() {
        one.onQueued(TrafficClass.BULK.rank(), MANY, nowNs);
        other.onQueued(TrafficClass.URGENT.rank(), MANY, nowNs);
        pass(LinkLoad.LOOK_NS);
        assertThat(one.isContended(TrafficClass.BULK)).isTrue();
        other.close();
        one.look(nowNs + LinkLoad.LOOK_NS);
        assertThat(one.isContended(TrafficClass.BULK)).isFalse();
    }

    @Test
    void shouldServeMoreLinksThanTheBoardHasRowsFor() {
        for (int i = 0; i < LinkBoard.ROWS + 1; i++) {
            LinkLoad load = new LinkLoad(board, LINK + 1 + i, SHARE, nowNs);
            load.onQueued(TrafficClass.URGENT.rank(), 1, nowNs);
            load.onQueued(TrafficClass.BULK.rank(), 1, nowNs);
            load.look(nowNs);
            assertThat(load.isContended(TrafficClass.BULK)).isTrue();
        }
    }
}
