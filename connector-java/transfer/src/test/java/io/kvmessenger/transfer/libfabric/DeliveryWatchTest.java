package io.kvmessenger.transfer.libfabric;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

final class DeliveryWatchTest {
    private static final int LOOKS = 10;
    private static final long LIMIT_NS = LOOKS * DeliveryWatch.ASK_NS;

    private final DeliveryWatch watch = new DeliveryWatch(LIMIT_NS);
    private long nowNs = Long.MAX_VALUE - LIMIT_NS;

    private void write(int count) {
        for (int i = 0; i < count; i++) {
            watch.onWritten();
        }
    }

    private boolean asks() {
        boolean shall = watch.shallAsk(nowNs);
        if (shall) {
            watch.onAsked();
        }
        return shall;
    }

    private void pass(long ns) {
        nowNs += ns;
    }

    private void askAndHear(long count) {
        assertThat(asks()).isFalse();
        pass(DeliveryWatch.ASK_NS);
        assertThat(asks()).isTrue();
        assertThat(asks()).as("one question at a time").isFalse();
        assertThat(watch.onAnswer(count, nowNs)).isTrue();
    }

    @Test
    void shouldAskNothingWhenNothingWasWrittenOrAllHasArrived() {
        assertThat(asks()).isFalse();
        write(3);
        askAndHear(3);
        pass(10 * LIMIT_NS);
        assertThat(asks()).isFalse();
        assertThat(watch.lostCount()).isZero();
    }

    private void askAndHearTheSame(int times, long count) {
        for (int i = 0; i < times; i++) {
            askAndHear(count);
        }
    }

    @Test
    void shouldSeeALossWhenAnswersStayShort() {
        write(5);
        askAndHear(1);
        askAndHear(3);
        askAndHearTheSame(LOOKS - 1, 3);
        assertThat(watch.lostCount()).isZero();
        askAndHear(3);
        assertThat(watch.lostCount()).isEqualTo(2);
    }

    /** Of either side. */
    @Test
    void shouldNotCountAPause() {
        write(5);
        askAndHearTheSame(LOOKS, 4);
        pass(DeliveryWatch.ASK_NS);
        assertThat(asks()).isTrue();
        pass(100 * LIMIT_NS);
        assertThat(watch.lostCount()).isZero();
        assertThat(watch.onAnswer(5, nowNs)).isTrue();
        assertThat(watch.lostCount()).isZero();
        assertThat(watch.isRefusedForGood(true, nowNs)).isFalse();
        pass(100 * LIMIT_NS);
        assertThat(watch.isRefusedForGood(true, nowNs)).isFalse();
    }

    /** What was written since may be under way. */
    @Test
    void shouldBeginAnewWithEachWriteAndCompletion() {
        write(5);
        askAndHearTheSame(LOOKS, 4);
        write(1);
        askAndHearTheSame(LOOKS, 5);
        assertThat(watch.lostCount()).isZero();
        watch.onCompleted();
        askAndHearTheSame(LOOKS, 5);
        assertThat(watch.lostCount()).isZero();
        askAndHear(5);
        assertThat(watch.lostCount()).isEqualTo(1);
    }

    @Test
    void shouldEndWhatIsRefusedWithoutAnEnd() {
        for (int i = 0; i < LOOKS; i++) {
            assertThat(watch.isRefusedForGood(true, nowNs)).isFalse();
            assertThat(watch.isRefusedForGood(true, nowNs))
                    .as("no time has passed")
                    .isFalse();
            pass(DeliveryWatch.ASK_NS);
        }
        assertThat(watch.isRefusedForGood(false, nowNs)).isFalse();
        for (int i = 0; i < LOOKS; i++) {
            assertThat(watch.isRefusedForGood(true, nowNs)).isFalse();
            pass(DeliveryWatch.ASK_NS);
        }
        assertThat(watch.isRefusedForGood(true, nowNs)).isTrue();
    }

    @Test
    void shouldNotBelieveWhatCannotBe() {
        assertThat(watch.onAnswer(0, nowNs)).as("not asked").isFalse();
        write(2);
        assertThat(asks()).isFalse();
        pass(DeliveryWatch.ASK_NS);
        assertThat(asks()).isTrue();
        assertThat(watch.onAnswer(3, nowNs)).as("more than was written").isFalse();
        assertThat(watch.onAnswer(-1, nowNs)).isFalse();
        assertThat(watch.onAnswer(1, nowNs)).isTrue();
        pass(DeliveryWatch.ASK_NS);
        assertThat(asks()).isTrue();
        assertThat(watch.onAnswer(0, nowNs)).as("fewer than before").isFalse();
    }
}
