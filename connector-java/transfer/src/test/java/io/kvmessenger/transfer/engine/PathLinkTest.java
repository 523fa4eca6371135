package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

final class PathLinkTest {
    private static final long MANY = 1L << 40;

    /** Hands over what it may, or everything at once. */
    private static final class Path implements Endpoint {
        final boolean canPace;
        long allowed = Long.MAX_VALUE;
        long unsentLimit = Long.MAX_VALUE;
        long heldLimit = Long.MAX_VALUE;
        long roundTripNs;
        int roundTripLooks;
        long given;

        Path(boolean canPace) {
            this.canPace = canPace;
        }

        @Override
        public int post(WriteBatch batch, long postId) {
            return 0;
        }

        @Override
        public long pace(long lengthBytes) {
            allowed = lengthBytes;
            long now = given;
            given = 0;
            return canPace ? now : UNPACED;
        }

        @Override
        public void limitUnsent(long lengthBytes) {
            unsentLimit = lengthBytes;
        }

        @Override
        public void limitHeld(long lengthBytes) {
            heldLimit = lengthBytes;
        }

        @Override
        public long leastRoundTripNs() {
            roundTripLooks++;
            return roundTripNs;
        }
    }

    private final LinkLoad load = new LinkLoad(LinkBoard.ofEngine(), 1, 0.2, 0);
    private final Path path = new Path(true);
    private final PathLink link = new PathLink(path, load);
    private long nowNs;

    private void queueUrgent(long lengthBytes) {
        load.onQueued(TrafficClass.URGENT.rank(), lengthBytes, nowNs);
        look(1);
    }

    private void look(long lengthNs) {
        nowNs += lengthNs;
        load.look(nowNs);
    }

    @ParameterizedTest
    @EnumSource(names = "URGENT", mode = EnumSource.Mode.EXCLUDE)
    void shouldHoldABegunFrameUntilItIsDueAndFreeThePathAfterwards(TrafficClass yielding) {
        queueUrgent(MANY);
        link.pace(yielding, false, 2, nowNs);
        assertThat(path.allowed).isZero();
        assertThat(path.unsentLimit).isBetween(PathLink.SLICE_MIN_BYTES, load.aheadBytes(yielding) / 2);
        assertThat(path.heldLimit).isEqualTo(PathLink.HELD_MIN_BYTES / 2);
        look(1_000_000);
        link.pace(yielding, false, 2, nowNs);
        assertThat(path.allowed).isPositive().isLessThan(Long.MAX_VALUE);
        path.given = MANY; // much more than it may: that is owed
        link.pace(yielding, false, 2, nowNs);
        look(1_000_000);
        link.pace(yielding, false, 2, nowNs);
        assertThat(path.allowed).isZero();
        queueUrgent(-MANY);
        link.pace(yielding, false, 2, nowNs);
        assertThat(path.allowed).isEqualTo(Long.MAX_VALUE);
        link.pace(TrafficClass.URGENT, false, 2, nowNs);
        assertThat(path.unsentLimit).as("for urgent writes that come next").isEqualTo(Long.MAX_VALUE);
        assertThat(path.heldLimit).as("for urgent writes that come next").isEqualTo(Long.MAX_VALUE);
    }

    /** An urgent write waits for what all paths of a peer hold together. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4, 16})
    void shouldDivideWhatAPeerHoldsAmongItsPaths(int pathCount) {
        link.pace(TrafficClass.BULK, false, pathCount, nowNs);
        assertThat(path.heldLimit)
                .isEqualTo(Math.max(PathLink.PATH_HELD_MIN_BYTES, PathLink.HELD_MIN_BYTES / pathCount));
    }

    /** With less than two round trips' worth a far link would stay as slow as it seemed at first. */
    @ParameterizedTest
    @ValueSource(longs = {0, 10_000, 1_000_000, 40_000_000, 200_000_000})
    void shouldHoldTwoRoundTripsWorthOfTheLink(long roundTripNs) {
        path.roundTripNs = roundTripNs;
        link.pace(TrafficClass.BULK, false, 1, nowNs);
        long inTwoBytes = (long) (LinkRate.MIN_BYTES_PER_NS * 2 * roundTripNs);
        assertThat(path.heldLimit)
                .isBetween(
                        Math.max(PathLink.HELD_MIN_BYTES, inTwoBytes),
                        PathLink.HELD_MIN_BYTES + load.aheadBytes(TrafficClass.BULK) + inTwoBytes);
    }

    /** Up and down, in steps of which some move no other limit: what may wait is at its minimum up to 36 MB/s. */
    @ParameterizedTest
    @ValueSource(longs = {0, 1_000_000, 20_000_000, 200_000_000})
    void shouldHoldAsMuchMoreAsTheLinkTurnsOutToMove(long roundTripNs) {
        path.roundTripNs = roundTripNs;
        for (double rate = LinkRate.MIN_BYTES_PER_NS; rate < 1; rate *= 1.1) {
            paceAt(rate);
        }
        for (int fall = 0; fall < 40; fall++) {
            paceAt(0);
        }
        long slowBytes = (long) (LinkRate.MIN_BYTES_PER_NS * 3 * roundTripNs);
        assertThat(path.heldLimit).as("forgotten").isLessThan(2 * Math.max(PathLink.HELD_MIN_BYTES, slowBytes));
        assertThat(path.roundTripLooks).isBetween(1, (int) (nowNs / PathLink.ROUND_TRIP_LOOK_NS) + 1);
    }

    /** A sample of the link at this rate; the bound is right by one step afterwards. */
    private void paceAt(double bytesPerNs) {
        load.onGiven(TrafficClass.BULK, (long) (bytesPerNs * LinkRate.SAMPLE_NS));
        look(LinkRate.SAMPLE_NS);
        link.pace(TrafficClass.BULK, false, 1, nowNs);
        long due = Math.max(PathLink.HELD_MIN_BYTES, load.aheadBytes(TrafficClass.BULK, 2 * path.roundTripNs));
        assertThat(path.heldLimit).as("at " + bytesPerNs).isBetween(due - due / 6, due + due / 6);
    }

    /** The least round trip is known late, or changes with the route. */
    @Test
    void shouldFollowTheRoundTripWithinASecond() {
        for (long roundTripNs : List.of(0L, 100_000_000L, 10_000_000L, 200_000_000L)) {
            path.roundTripNs = roundTripNs;
            look(PathLink.ROUND_TRIP_LOOK_NS);
            link.pace(TrafficClass.BULK, false, 1, nowNs);
            long due = Math.max(PathLink.HELD_MIN_BYTES, load.aheadBytes(TrafficClass.BULK, 2 * roundTripNs));
            assertThat(path.heldLimit).isBetween(due - due / 6, due + due / 6);
        }
    }

    /** The path moves what it holds in each round trip: what it may hold must not be what the link is measured by. */
    @ParameterizedTest
    @ValueSource(longs = {1_000_000, 14_000_000, 20_000_000, 70_000_000, 200_000_000})
    void shouldReachTheLinksRate(long roundTripNs) {
        for (double linkRate : new double[] {LinkRate.MIN_BYTES_PER_NS, 0.03, 0.125, 1, 12.5}) {
            Path far = new Path(true);
            far.roundTripNs = roundTripNs;
            LinkLoad seen = new LinkLoad(LinkBoard.ofEngine(), 1, 0.2, nowNs);
            PathLink itsLink = new PathLink(far, seen);
            long tickNs = 10_000_000;
            double moved = 0;
            for (int tick = 0; tick < 1_000; tick++) {
                nowNs += tickNs;
                seen.look(nowNs);
                itsLink.pace(TrafficClass.BULK, false, 1, nowNs);
                moved = Math.min(linkRate * tickNs, (double) far.heldLimit / roundTripNs * tickNs);
                far.given = (long) moved;
            }
            assertThat(moved / tickNs).as("of " + linkRate).isGreaterThan(0.99 * linkRate);
        }
    }

    /** Its own urgent writes wait behind the frame. */
    @Test
    void shouldNotHoldAFrameOfAPeerThatHasUrgentWritesToo() {
        queueUrgent(MANY);
        link.pace(TrafficClass.BULK, true, 2, nowNs);
        assertThat(path.allowed).isEqualTo(Long.MAX_VALUE);
    }

    @Test
    void shouldLeaveTheLimitOfASpreadAlone() {
        link.pace(TrafficClass.BULK, false, 0, nowNs);
        link.pace(TrafficClass.URGENT, false, 0, nowNs);
        assertThat(path.unsentLimit).isEqualTo(Long.MAX_VALUE);
        assertThat(path.heldLimit).isEqualTo(Long.MAX_VALUE);
    }

    /** A spread sets its own limit as it begins, of what waits; it has none for what a path holds. */
    @ParameterizedTest
    @EnumSource
    void shouldHandTheLimitsToASpreadThatBegins(TrafficClass next) {
        link.pace(TrafficClass.BULK, false, 1, nowNs);
        assertThat(path.heldLimit).isLessThan(Long.MAX_VALUE);
        path.limitUnsent(MANY);
        link.pace(next, false, 0, nowNs);
        assertThat(path.heldLimit).isEqualTo(Long.MAX_VALUE);
        link.pace(TrafficClass.URGENT, false, 0, nowNs);
        assertThat(path.unsentLimit).as("the spread's").isEqualTo(MANY);
    }

    @Test
    void shouldCountWhatIsPostedToAPathThatCannotBePaced() {
        PathLink unpaced = new PathLink(new Path(false), load);
        queueUrgent(MANY);
        unpaced.pace(TrafficClass.BULK, false, 1, nowNs);
        assertThat(unpaced.mayPost(TrafficClass.BULK, 0)).isFalse();
        look(2_000_000);
        look(2_000_000);
        assertThat(unpaced.mayPost(TrafficClass.BULK, 0)).isTrue();
        assertThat(unpaced.mayPost(TrafficClass.BULK, PathLink.IN_FLIGHT_MIN_BYTES))
                .isFalse();
        unpaced.onPosted(TrafficClass.BULK, PathLink.SLICE_MAX_BYTES);
        assertThat(unpaced.mayPost(TrafficClass.BULK, 0)).isFalse();
        assertThat(unpaced.mayPost(TrafficClass.URGENT, MANY)).isTrue();
    }
}
