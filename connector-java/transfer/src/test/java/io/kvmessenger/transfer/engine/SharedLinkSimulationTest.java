package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.engine.SharedLinkSimulation.Fault;
import java.util.Set;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Workers of several processes on one link, in simulated time, with writes of all classes drawn from a seed. */
final class SharedLinkSimulationTest {
    private static final long SEEDS = 60;

    @Test
    void shouldBoundTheDelayOfUrgentWritesAndStarveNoOthers() {
        for (long seed = 1; seed <= SEEDS; seed++) {
            SharedLinkSimulation run = new SharedLinkSimulation(seed, Set.of());
            run.run();
            assertThat(run.violations()).as("seed " + seed).isEmpty();
            assertThat(run.completedCount(TrafficClass.URGENT))
                    .as("seed " + seed)
                    .isPositive();
        }
    }

    /** The simulation sees what it is there to see. */
    @ParameterizedTest
    @EnumSource
    void shouldFindTheFault(Fault fault) {
        assertThat(LongStream.rangeClosed(1, SEEDS)
                        .mapToObj(seed -> new SharedLinkSimulation(seed, Set.of(fault)))
                        .peek(SharedLinkSimulation::run)
                        .anyMatch(run -> !run.violations().isEmpty()))
                .isTrue();
    }
}
