package io.kvmessenger.transfer.samehost;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(value = 900, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
final class ImmRingTest {
    private static final int COUNT = 3 * ImmRing.CAPACITY + 5;

    private final MemorySegment memory = Arena.ofAuto().allocate(ImmRing.LENGTH_BYTES, 64);
    private final ImmRing writer = new ImmRing(memory);
    private final ImmRing target = new ImmRing(memory);

    @Test
    void shouldRefuseWhenFullAndKeepTheOrderRoundTheEnd() {
        int pushed = 1;
        int taken = 1;
        while (taken < COUNT) {
            while (writer.push(pushed)) {
                pushed++;
            }
            assertThat(pushed - taken).isEqualTo(ImmRing.CAPACITY);
            for (int i = 0; i < 1000; i++) {
                assertThat(target.take()).isEqualTo(taken++);
            }
        }
        while (taken < pushed) {
            assertThat(target.take()).isEqualTo(taken++);
        }
        assertThat(target.take()).isEqualTo(ImmRing.EMPTY);
        assertThat(target.isSound()).isTrue();
    }

    @Test
    void shouldAskForOneWakeForEachSleep() {
        writer.push(1);
        assertThat(writer.claimWake()).isFalse();
        target.park();
        assertThat(writer.claimWake()).isTrue();
        assertThat(writer.claimWake()).isFalse();
    }

    @Test
    void shouldNoticeAPositionThatCannotBeTrue() {
        memory.set(ValueLayout.JAVA_LONG, 0, ImmRing.CAPACITY + 1L);
        target.take();
        assertThat(target.isSound()).isFalse();
    }

    @Test
    void shouldShowWhatWasWrittenBeforeThePush() throws InterruptedException {
        long[] payload = new long[1];
        Thread pusher = Thread.ofPlatform().start(() -> {
            for (int i = 1; i <= COUNT; i++) {
                payload[0] = i;
                while (!writer.push(i)) {
                    Thread.onSpinWait();
                }
            }
        });
        for (int taken = 1; taken <= COUNT; ) {
            int imm = target.take();
            if (imm == ImmRing.EMPTY) {
                Thread.onSpinWait();
                continue;
            }
            assertThat(imm).isEqualTo(taken++);
            assertThat(payload[0]).isGreaterThanOrEqualTo(imm);
        }
        pusher.join();
    }
}
