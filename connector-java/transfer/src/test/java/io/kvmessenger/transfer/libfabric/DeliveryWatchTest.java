package io.kvmessenger.transfer.libfabric;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

final class DeliveryWatchTest {
    private static final long LIMIT_NS = 10 * DeliveryWatch.ASK_NS;

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
        assertThat(watch.lostCount(nowNs)).isZero();
    }

    @Test
    void shouldSeeALossWhenAnswersStayShortForTheLimit() {
        write(5);
        askAndHear(1);
        for (int i = 0; i < 5; i++) {
            askAndHear(3);
        }
        assertThat(watch.lostCount(nowNs)).isZero();
        pass(LIMIT_NS - 4 * DeliveryWatch.ASK_NS - 1);
        assertThat(watch.lostCount(nowNs)).isZero();
        pass(1);
        assertThat(watch.lostCount(nowNs)).isEqualTo(2);
    }

    @Test
    void shouldSeeNoLossWhileTheTargetSaysNothing() {
        write(5);
        askAndHear(4);
        pass(DeliveryWatch.ASK_NS);
        assertThat(asks()).isTrue();
        pass(100 * LIMIT_NS);
        assertThat(watch.lostCount(nowNs)).isZero();
        assertThat(watch.onAnswer(5, nowNs)).isTrue();
        assertThat(watch.lostCount(nowNs)).isZero();
    }

    /** What was written since may be under way. */
    @Test
    void shouldBeginAnewWithEachWrite() {
        write(5);
        askAndHear(4);
        write(1);
        pass(2 * LIMIT_NS);
        assertThat(watch.lostCount(nowNs)).isZero();
        askAndHear(5);
        assertThat(watch.lostCount(nowNs)).isZero();
        pass(LIMIT_NS);
        assertThat(watch.lostCount(nowNs)).isEqualTo(1);
    }

    @Test
    void shouldSeeNoLossWhileWritesComplete() {
        write(5);
        askAndHear(1);
        pass(LIMIT_NS);
        watch.onCompleted();
        assertThat(watch.lostCount(nowNs)).isZero();
        askAndHear(1);
        assertThat(watch.lostCount(nowNs)).isZero();
        pass(LIMIT_NS);
        assertThat(watch.lostCount(nowNs)).isEqualTo(4);
    }

    @Test
    void shouldEndWhatIsRefusedWithoutAnEnd() {
        assertThat(watch.isRefusedForGood(true, nowNs)).isFalse();
        pass(LIMIT_NS - 1);
        assertThat(watch.isRefusedForGood(true, nowNs)).isFalse();
        assertThat(watch.isRefusedForGood(false, nowNs)).isFalse();
        pass(LIMIT_NS);
        assertThat(watch.isRefusedForGood(true, nowNs)).isFalse();
        pass(LIMIT_NS);
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
