package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A simulation that has never failed proves nothing: each bug put in on purpose is found, and soon. */
class MutantTest {
    private static final long SEEDS_MAX = 500;
    private static final long COMPARED_SEEDS = 200;

    @ParameterizedTest
    @EnumSource(value = Mutation.class, mode = EnumSource.Mode.EXCLUDE, names = "NONE")
    void shouldCatchEveryMutant(Mutation mutation) {
        Simulation.Result caught = null;
        for (long seed = 1; seed <= SEEDS_MAX && caught == null; seed++) {
            Simulation.Result result = Simulation.run(seed, mutation);
            if (!result.passed()) {
                caught = result;
            }
        }
        assertThat(caught)
                .as(mutation + " was not caught within " + SEEDS_MAX + " seeds")
                .isNotNull();
        System.out.printf(
                "mutant %s: caught by %s after %d seeds%n",
                mutation, caught.violation().checker(), caught.seed());
        assertThat(caught.violation().checker()).isNotEqualTo("Crash");
    }

    @Test
    void shouldLetNoDamagedPageArriveWhereAllAreCompared() {
        for (long seed = 1; seed <= COMPARED_SEEDS; seed++) {
            Simulation.Result result = Simulation.runComparing(seed, Mutation.PAYLOAD_DAMAGED);
            assertThat(result.passed()).as(result.report()).isTrue();
        }
    }
}
