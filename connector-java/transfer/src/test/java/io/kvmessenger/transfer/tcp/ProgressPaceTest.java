package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

/** When a peer is told what was taken, in time that the test moves. */
final class ProgressPaceTest {
    private static final long PAGE_BYTES = 4 << 10;
    private static final long STEP_NS = 1_000;
    private static final long PING_NS = 60_000;
    private static final int PINGS = 1_000;

    private final ProgressPace pace = new ProgressPace();
    private long nowNs = 7 * ProgressPace.AGE_MAX_NS;
    private long unreported;
    private int reported;

    /** A duty cycle in which so many frames came. */
    private void doWork(int frames, long stepNs) {
        nowNs += stepNs;
        unreported += frames;
        if (unreported > 0 && pace.isDue(unreported, unreported * PAGE_BYTES, nowNs)) {
            pace.onReported();
            unreported = 0;
            reported++;
        }
    }

    @Test
    void shouldReportFramesToAndFroTogether() {
        for (int i = 0; i < PINGS; i++) {
            doWork(1, STEP_NS);
            for (long idleNs = STEP_NS; idleNs < PING_NS; idleNs += STEP_NS) {
                doWork(0, STEP_NS);
            }
        }
        // The first may be told alone: how far apart they come is not known yet.
        assertThat(reported).isBetween(1, PINGS / (ProgressPace.FRAMES_MAX - 1) + 2);
    }

    @Test
    void shouldReportAtOnceWhatIsManyFramesOrManyBytes() {
        assertThat(pace.isDue(ProgressPace.FRAMES_MAX, 1, nowNs)).isTrue();
        pace.onReported();
        assertThat(pace.isDue(1, ProgressPace.BYTES_MAX, nowNs)).isTrue();
        pace.onReported();
        assertThat(pace.isDue(1, ProgressPace.BYTES_MAX - 1, nowNs + 1)).isFalse();
    }

    /** The writer waits for its completions: a stop is told long before the oldest is old. */
    @Test
    void shouldReportSoonWhenFramesStop() {
        for (int frame = 0; frame < 3; frame++) {
            doWork(1, 4 * STEP_NS);
        }
        assertThat(reported).isZero();
        for (int i = 0; i <= 4 * ProgressPace.STOPPED_FACTOR && reported == 0; i++) {
            doWork(0, STEP_NS);
        }
        assertThat(reported).isEqualTo(1);
        assertThat(unreported).isZero();
    }

    /** Several in one duty cycle: nothing is known of their distance. */
    @Test
    void shouldReportInTheNextIdleDutyCycleWhatCameAtOnce() {
        doWork(2, STEP_NS);
        assertThat(reported).isZero();
        doWork(0, 1);
        assertThat(reported).isEqualTo(1);
    }

    @Test
    void shouldReportALoneFrameWhenItIsOld() {
        doWork(1, 10 * ProgressPace.AGE_MAX_NS);
        doWork(0, ProgressPace.AGE_MAX_NS - 1);
        assertThat(reported).isZero();
        doWork(0, 1);
        assertThat(reported).isEqualTo(1);
    }

    @Test
    void shouldCountTheAgeOfTheOldest() {
        doWork(1, STEP_NS);
        doWork(1, ProgressPace.AGE_MAX_NS / 2);
        assertThat(reported).isZero();
        doWork(1, ProgressPace.AGE_MAX_NS / 2);
        assertThat(reported).isEqualTo(1);
        doWork(1, STEP_NS);
        assertThat(reported).as("a new age begins").isEqualTo(1);
    }
}
