package io.kvmessenger.transfer.agent;

import static org.assertj.core.api.Assertions.assertThat;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What a runner owes its agent, whatever ends it. */
@Timeout(value = 900, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
final class AgentRunnerTest {
    private static final Duration LIMIT = Duration.ofMinutes(10);

    private final Recorded agent = new Recorded();
    private final List<String> seen = agent.seen;
    private final AgentRunner runner = new AgentRunner(agent, error -> seen.add("error " + error.getMessage()));

    /** Works until its idle is reached, and stays there until it is woken. */
    private static final class Recorded implements Agent {
        final List<String> seen = new CopyOnWriteArrayList<>();
        final CountDownLatch idle = new CountDownLatch(1);
        final CountDownLatch woken = new CountDownLatch(1);
        final AtomicReference<RuntimeException> failure = new AtomicReference<>();
        final CountDownLatch mayClose = new CountDownLatch(1);
        private int cycles;

        @Override
        public String roleName() {
            return "the-role";
        }

        @Override
        public int doWork() {
            if (failure.get() != null) {
                throw failure.get();
            }
            cycles++;
            seen.add("cycle " + cycles + " on " + Thread.currentThread().getName());
            return cycles < 3 ? 1 : 0;
        }

        @Override
        public void idle(BooleanSupplier stopping) {
            idle.countDown();
            await(woken);
            seen.add(stopping.getAsBoolean() ? "stopping" : "idle");
        }

        @Override
        public void wake() {
            woken.countDown();
        }

        @Override
        public void onClose() {
            await(mayClose);
            seen.add("closed");
        }

        static void await(CountDownLatch latch) {
            try {
                latch.await();
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
        }
    }

    @Test
    void shouldGoIdleOnlyAfterADutyCycleThatFoundNothing() {
        agent.mayClose.countDown();
        runner.start();
        Recorded.await(agent.idle);
        runner.stop();
        assertThat(runner.join(LIMIT)).isTrue();
        assertThat(seen)
                .containsExactly(
                        "cycle 1 on the-role", "cycle 2 on the-role", "cycle 3 on the-role", "stopping", "closed");
    }

    @Test
    void shouldReportTheErrorOfADutyCycleBeforeItClosesTheAgent() {
        agent.mayClose.countDown();
        agent.failure.set(new IllegalStateException("of the cycle"));
        runner.start();
        assertThat(runner.join(LIMIT)).isTrue();
        assertThat(seen).containsExactly("error of the cycle", "closed");
        assertThat(runner.isAlive()).isFalse();
        assertThat(runner.isStopping()).as("it was not told to").isFalse();
    }

    @Test
    void shouldBeAliveWhileTheAgentCloses() {
        runner.start();
        runner.stop();
        assertThat(runner.join(Duration.ofMillis(1))).isFalse();
        assertThat(runner.isAlive()).isTrue();
        agent.mayClose.countDown();
        assertThat(runner.join(LIMIT)).isTrue();
    }

    @Test
    void shouldKeepAnInterruptThatCameWhileItWaited() {
        runner.start();
        runner.stop();
        Thread.currentThread().interrupt();
        assertThat(runner.join(Duration.ofMillis(20))).as("the wait goes on").isFalse();
        assertThat(Thread.interrupted()).isTrue();
        agent.mayClose.countDown();
        assertThat(runner.join(LIMIT)).isTrue();
    }

    @Test
    void shouldNotWaitForAThreadThatWasNeverStarted() {
        runner.stop();
        assertThat(runner.hasStarted()).isFalse();
        assertThat(runner.join(LIMIT)).isTrue();
        assertThat(seen).as("its owner closes it").isEmpty();
    }
}
