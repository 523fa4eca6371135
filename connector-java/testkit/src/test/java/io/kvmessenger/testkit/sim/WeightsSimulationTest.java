package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.DeterminismChecker;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Trainers that send weights to servers, under faults at every state and at every frame. */
class WeightsSimulationTest {
    private static final long SEEDS = 60;
    /** Until every state that lasts has been struck. */
    private static final long STRUCK_SEEDS = 200;

    @ParameterizedTest
    @CsvSource({"FAULTY,NONE", "SOUND,NONE", "QUIET,NONE", "FAULTY,PORTS", "FAULTY,CLOCKS"})
    void shouldServeWholeVersionsAndHoldNothingAtRest(Weather weather, Hardships.Kind beside) {
        LongStream.rangeClosed(1, SEEDS).parallel().forEach(seed -> run(seed, weather, beside));
    }

    private static Map<String, Integer> run(long seed, Weather weather, Hardships.Kind beside) {
        Simulation.Result result = WeightsSimulation.run(seed, weather, beside, EngineFault.NONE);
        assertThat(result.passed()).as(result.report()).isTrue();
        return result.countByKind();
    }

    /**
     * The promises are not kept by doing nothing, and no state and no frame was left out but the
     * briefest: COMPARING, QUARANTINED and Abandon are struck too, not in any few seeds.
     */
    @Test
    void shouldMeetFaultsInEveryStateAndAtEveryFrame() {
        Map<String, Integer> met = new ConcurrentSkipListMap<>();
        LongStream.rangeClosed(1, STRUCK_SEEDS)
                .parallel()
                .forEach(seed -> run(seed, Weather.FAULTY, Hardships.Kind.NONE)
                        .forEach((kind, count) -> met.merge(kind, count, Integer::sum)));
        List<String> states = List.of(
                "EMPTY", "GROUND", "COMPARING", "LANDED", "APPLYING", "HELD", "QUARANTINED", "ANNOUNCED", "WRITING");
        List<String> struck = Stream.of("end", "stop", "reset")
                .flatMap(what -> states.stream().map(state -> what + " in " + state))
                .toList();
        List<String> lost = Stream.of("ANNOUNCE", "GROUND", "LANDED", "APPLIED", "REFUSED")
                .map(frame -> "lost " + frame)
                .toList();
        assertThat(met).containsKeys(struck.toArray(String[]::new)).containsKeys(lost.toArray(String[]::new));
        assertThat(met.get("loaded")).isGreaterThan(5 * (int) STRUCK_SEEDS);
    }

    @Test
    void shouldRepeatARunFromItsSeed() {
        for (long seed = 1; seed <= 10; seed++) {
            DeterminismChecker.check(
                    seed,
                    each -> WeightsSimulation.run(each, Weather.FAULTY, Hardships.Kind.NONE, EngineFault.NONE)
                            .traceHash());
        }
    }
}
