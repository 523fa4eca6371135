package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Optional;
import java.util.function.LongFunction;
import java.util.stream.LongStream;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Each bug that is put into the production source of weights, or into the engines around it, is found, and soon, by a
 * seed that passes without it.
 */
class WeightsMutantTest {
    private static final long SEEDS_MAX = 400;
    private static final long SEEDS_AT_A_TIME = 4;

    @ParameterizedTest
    @EnumSource(WeightsMutant.class)
    void shouldCatchEveryChangeOfTheSource(WeightsMutant mutant, @TempDir Path folder)
            throws IOException, ReflectiveOperationException {
        assertCaught(mutant.name(), MutatedWeights.runs(mutant, folder));
    }

    @ParameterizedTest
    @EnumSource(value = EngineFault.class, mode = EnumSource.Mode.EXCLUDE, names = "NONE")
    void shouldCatchEveryBugOfAnEngine(EngineFault fault) {
        assertCaught(fault.name(), new WeightsRuns(fault.name()));
    }

    /** Few seeds at a time: what runs beyond the first that shows the bug runs for nothing. */
    private static void assertCaught(String mutant, LongFunction<String> runs) {
        Optional<Caught> caught = LongStream.range(0, SEEDS_MAX / SEEDS_AT_A_TIME)
                .mapToObj(batch -> LongStream.rangeClosed(1, SEEDS_AT_A_TIME)
                        .parallel()
                        .map(seed -> batch * SEEDS_AT_A_TIME + seed)
                        .mapToObj(seed -> new Caught(seed, runs.apply(seed)))
                        .filter(each -> !each.sentence().isEmpty())
                        .findFirst())
                .flatMap(Optional::stream)
                .findFirst();
        assertThat(caught)
                .as(mutant + " was not caught within " + SEEDS_MAX + " seeds")
                .isPresent();
        System.out.printf(
                "mutant %s: seed %d, %s%n",
                mutant, caught.get().seed(), caught.get().sentence());
        assertThat(caught.get().sentence()).doesNotStartWith("Crash");
        assertThat(new WeightsRuns(EngineFault.NONE.name()).apply(caught.get().seed()))
                .as("seed " + caught.get().seed() + " without " + mutant)
                .isEmpty();
    }

    /** What a seed has shown; nothing if the sentence is empty. */
    private record Caught(long seed, String sentence) {}
}
