package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.util.List;
import org.junit.jupiter.api.Test;

/** A run that has nothing beside it must not pass for one that has. */
class BesideRunTest {
    private static final List<Throwable> FAULTS = List.of(
            new IOException("refused"),
            new InterruptedException("interrupted"),
            new IllegalStateException("the data path is shm"),
            new AssertionError("a rule is broken"),
            new OutOfMemoryError("no heap"),
            new UnsatisfiedLinkError("no library"));

    @Test
    void shouldFailByWhateverEndsTheRunBeside() {
        for (Throwable fault : FAULTS) {
            assertThatThrownBy(() -> BesideRun.start(_ -> throwIt(fault)))
                    .as(fault.toString())
                    .isInstanceOf(IllegalStateException.class)
                    .hasMessageStartingWith("the run beside this one: ")
                    .hasMessageEndingWith(fault.getMessage())
                    .hasCause(fault);
        }
    }

    private static void throwIt(Throwable fault) throws IOException, InterruptedException {
        switch (fault) {
            case IOException e -> throw e;
            case InterruptedException e -> throw e;
            case RuntimeException e -> throw e;
            case Error e -> throw e;
            default -> throw new AssertionError(fault);
        }
    }
}
