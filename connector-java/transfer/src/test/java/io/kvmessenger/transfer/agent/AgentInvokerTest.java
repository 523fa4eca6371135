package io.kvmessenger.transfer.agent;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;

/** Agents whose duty cycles the test's own thread runs. */
final class AgentInvokerTest {
    private final List<String> seen = new ArrayList<>();
    private final Scripted first = new Scripted("first");
    private final Scripted second = new Scripted("second");
    private final AgentInvoker invoker =
            new AgentInvoker(List.of(first, second), error -> seen.add("error " + error.getMessage()));

    /** Does as much as the test says, or throws. */
    private final class Scripted implements Agent {
        private final String name;
        int work = 1;
        RuntimeException failure;
        RuntimeException failureOfClose;

        Scripted(String name) {
            this.name = name;
        }

        @Override
        public String roleName() {
            return name;
        }

        @Override
        public int doWork() {
            if (failure != null) {
                throw failure;
            }
            seen.add(name);
            return work;
        }

        @Override
        public void idle(BooleanSupplier stopping) {
            throw new AssertionError("an invoker waits for nothing");
        }

        @Override
        public void wake() {}

        @Override
        public void onClose() {
            seen.add(name + " closed");
            if (failureOfClose != null) {
                throw failureOfClose;
            }
        }
    }

    @Test
    void shouldRunEachOnceAndSumWhatTheyDid() {
        second.work = 4;
        assertThat(invoker.invoke()).isEqualTo(5);
        assertThat(invoker.invoke(1)).isEqualTo(4);
        assertThat(seen).containsExactly("first", "second", "second");
    }

    @Test
    void shouldEndAllForAnErrorOfOne() {
        first.failure = new IllegalStateException("of first");
        assertThat(invoker.invoke()).isZero();
        assertThat(seen).containsExactly("error of first", "first closed", "second closed");
        assertThat(invoker.isRunning()).isFalse();
        invoker.close();
        assertThat(invoker.invoke()).as("none runs any more").isZero();
        assertThat(seen).hasSize(3);
    }

    @Test
    void shouldCloseAllAlsoWhenOneCannotBeClosedProperly() {
        first.failureOfClose = new IllegalStateException("of first");
        second.failureOfClose = new IllegalStateException("of second");
        assertThatThrownBy(invoker::close).isSameAs(first.failureOfClose);
        assertThat(seen).containsExactly("first closed", "second closed");
        assertThat(invoker.isRunning()).isFalse();
    }
}
