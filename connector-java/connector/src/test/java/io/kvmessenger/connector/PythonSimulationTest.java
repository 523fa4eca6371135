package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.sim.PythonEngines;
import io.kvmessenger.testkit.sim.PythonMutation;
import io.kvmessenger.testkit.sim.Simulation;
import io.kvmessenger.testkit.sim.check.DeterminismChecker;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The real Python connector under the simulation's seeded faults, in this thread, by Jep. */
class PythonSimulationTest extends PythonSimulation {
    private static final long SEEDS_QUIET = 40;
    private static final long SEEDS_BOTH_ROLES = 15;
    private static final long SEEDS_RUN_TWICE = 10;
    private static final long SEEDS_PER_MUTANT_MAX = 300;

    @Test
    void shouldKeepEveryPromiseForEveryEvenSeed() {
        keepEveryPromise(2);
    }

    @Test
    void shouldDeliverEverythingWhenNothingGoesWrong() {
        for (long seed = 1; seed <= SEEDS_QUIET; seed++) {
            Simulation.Result result = Simulation.runQuietly(seed, engines);
            assertThat(result.passed()).as(result.report()).isTrue();
        }
    }

    @Test
    void shouldKeepEveryPromiseWhenEachEngineHasBothRolesAndUsesOne() {
        PythonEngines both = engines.withBothRoles();
        for (long seed = 1; seed <= SEEDS_BOTH_ROLES; seed++) {
            Simulation.Result result = Simulation.run(seed, both);
            assertThat(result.passed()).as(result.report()).isTrue();
            Simulation.Result quiet = Simulation.runQuietly(seed, both);
            assertThat(quiet.passed()).as(quiet.report()).isTrue();
        }
    }

    @Test
    void shouldGiveTheSameTraceForTheSameSeed() {
        for (long seed = 1; seed <= SEEDS_RUN_TWICE; seed++) {
            DeterminismChecker.check(seed, s -> Simulation.run(s, engines).traceHash());
        }
    }

    @ParameterizedTest
    @EnumSource(value = PythonMutation.class, mode = EnumSource.Mode.EXCLUDE, names = "NONE")
    void shouldCatchEveryMutant(PythonMutation mutation) {
        Simulation.Result caught = null;
        for (long seed = 1; seed <= SEEDS_PER_MUTANT_MAX && caught == null; seed++) {
            Simulation.Result result = Simulation.run(seed, engines.with(mutation));
            if (!result.passed()) {
                caught = result;
            }
        }
        assertThat(caught)
                .as(mutation + " was not caught within " + SEEDS_PER_MUTANT_MAX + " seeds")
                .isNotNull();
        System.out.printf(
                "mutant %s: caught by %s after %d seeds%n",
                mutation, caught.violation().checker(), caught.seed());
    }
}
