package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.DeterminismChecker;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Messengers whose subject has no KV, under the same faults as those of a KV cache. */
class EchoSimulationTest {
    private static final long SEEDS = 200;

    @ParameterizedTest
    @CsvSource({"FAULTY,NONE", "QUIET,NONE", "FAULTY,PORTS"})
    void shouldEndEveryAskAndHoldNothingAtRest(Weather weather, Hardships.Kind beside) {
        LongStream.rangeClosed(1, SEEDS).parallel().forEach(seed -> {
            Simulation.Result result = EchoSimulation.run(seed, weather, beside);
            assertThat(result.passed()).as(result.report()).isTrue();
        });
    }

    @Test
    void shouldRepeatARunFromItsSeed() {
        for (long seed = 1; seed <= 10; seed++) {
            DeterminismChecker.check(
                    seed,
                    each -> EchoSimulation.run(each, Weather.FAULTY, Hardships.Kind.NONE)
                            .traceHash());
        }
    }
}
