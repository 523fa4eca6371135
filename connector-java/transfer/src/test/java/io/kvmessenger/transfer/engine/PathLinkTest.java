package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
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
        link.pace(yielding, false, 2);
        assertThat(path.allowed).isZero();
        assertThat(path.unsentLimit).isBetween(PathLink.SLICE_MIN_BYTES, load.aheadBytes(yielding) / 2);
        assertThat(path.heldLimit).isEqualTo(PathLink.HELD_MIN_BYTES);
        look(1_000_000);
        link.pace(yielding, false, 2);
        assertThat(path.allowed).isPositive().isLessThan(Long.MAX_VALUE);
        path.given = MANY; // much more than it may: that is owed
        link.pace(yielding, false, 2);
        look(1_000_000);
        link.pace(yielding, false, 2);
        assertThat(path.allowed).isZero();
        queueUrgent(-MANY);
        link.pace(yielding, false, 2);
        assertThat(path.allowed).isEqualTo(Long.MAX_VALUE);
        link.pace(TrafficClass.URGENT, false, 2);
        assertThat(path.unsentLimit).as("for urgent writes that come next").isEqualTo(Long.MAX_VALUE);
        assertThat(path.heldLimit).as("for urgent writes that come next").isEqualTo(Long.MAX_VALUE);
    }

    /** With less than two round trips' worth a far link would stay as slow as it seemed at first. */
    @ParameterizedTest
    @ValueSource(longs = {0, 10_000, 1_000_000, 40_000_000, 200_000_000})
    void shouldHoldTwoRoundTripsWorthOfTheLink(long roundTripNs) {
        path.roundTripNs = roundTripNs;
        link.pace(TrafficClass.BULK, false, 1);
        long inTwoBytes = (long) (LinkRate.MIN_BYTES_PER_NS * 2 * roundTripNs);
        assertThat(path.heldLimit)
                .isBetween(
                        Math.max(PathLink.HELD_MIN_BYTES, inTwoBytes),
                        PathLink.HELD_MIN_BYTES + load.aheadBytes(TrafficClass.BULK) + inTwoBytes);
    }

    /** Its own urgent writes wait behind the frame. */
    @Test
    void shouldNotHoldAFrameOfAPeerThatHasUrgentWritesToo() {
        queueUrgent(MANY);
        link.pace(TrafficClass.BULK, true, 2);
        assertThat(path.allowed).isEqualTo(Long.MAX_VALUE);
    }

    @Test
    void shouldLeaveTheLimitOfASpreadAlone() {
        link.pace(TrafficClass.BULK, false, 0);
        link.pace(TrafficClass.URGENT, false, 0);
        assertThat(path.unsentLimit).isEqualTo(Long.MAX_VALUE);
        assertThat(path.heldLimit).isEqualTo(Long.MAX_VALUE);
    }

    @Test
    void shouldCountWhatIsPostedToAPathThatCannotBePaced() {
        PathLink unpaced = new PathLink(new Path(false), load);
        queueUrgent(MANY);
        unpaced.pace(TrafficClass.BULK, false, 1);
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
