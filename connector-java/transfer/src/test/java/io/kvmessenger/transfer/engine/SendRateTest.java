package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import org.junit.jupiter.api.Test;

/** A peer of a known rate, in time that the test moves. */
class SendRateTest {
    private static final long STEP_NS = 100_000;
    private static final double RATE = 0.25; // bytes a nanosecond
    private static final long MIB = 1 << 20;

    private long nowNs = 1_000;
    private long submittedBytes;
    private double sentBytes;
    private double bytesPerNs = RATE;
    private int clockReads;
    private final SendRate rate = new SendRate(() -> {
        clockReads++;
        return nowNs;
    });

    private long queuedBytes() {
        return submittedBytes - (long) sentBytes;
    }

    /** One duty cycle that takes some time. */
    private void step() {
        long cycleNs = nowNs;
        rate.begin(queuedBytes(), (long) sentBytes);
        nowNs += STEP_NS;
        sentBytes = Math.min((double) submittedBytes, sentBytes + bytesPerNs * STEP_NS);
        rate.look(queuedBytes(), (long) sentBytes, cycleNs);
    }

    private void send(long bytes) {
        submittedBytes += bytes;
        while (queuedBytes() > 0) {
            step();
        }
    }

    @Test
    void shouldKnowNothingBeforeItHasSeenAQueueForLongEnough() {
        step();
        assertThat(rate.bytesPerSecond()).isZero();
        send((long) (RATE * (SendRate.KNOWN_AFTER_NS - 2 * STEP_NS)));
        assertThat(rate.bytesPerSecond()).isZero();
    }

    @Test
    void shouldMeasureTheTimeInWhichThereWasSomethingToSend() {
        for (int i = 0; i < 20; i++) {
            send(MIB);
            nowNs += 500_000_000; // nothing to do
        }
        assertThat(rate.bytesPerSecond()).isCloseTo(RATE * 1e9, within(RATE * 1e9 * 0.05));
    }

    @Test
    void shouldFollowAPeerThatBecomesSlow() {
        send(64 * MIB);
        bytesPerNs = RATE / 10;
        send(256 * MIB);
        assertThat(rate.bytesPerSecond()).isCloseTo(RATE / 10 * 1e9, within(RATE / 10 * 1e9 * 0.05));
    }

    @Test
    void shouldFallToNothingWhileNothingIsTaken() {
        send(64 * MIB);
        bytesPerNs = 0;
        submittedBytes += MIB;
        for (int i = 0; i < 100_000; i++) {
            step();
        }
        assertThat(rate.bytesPerSecond()).isLessThan(RATE * 1e9 / 100);
    }

    @Test
    void shouldReadTheClockOnlyForSamples() {
        for (int i = 0; i < 1_000; i++) {
            step();
        }
        assertThat(clockReads).as("nothing is queued").isZero();
        send(16 * MIB);
        long samples = (long) (16 * MIB / RATE) / SendRate.SAMPLE_NS;
        assertThat((long) clockReads).isLessThanOrEqualTo(samples + 2);
    }
}
