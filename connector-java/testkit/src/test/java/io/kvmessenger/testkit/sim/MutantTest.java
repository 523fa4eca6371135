package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Optional;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A simulation that has never failed proves nothing: each bug put in on purpose is found, and soon. */
class MutantTest {
    private static final long SEEDS_MAX = 1000;
    private static final long SEEDS_AT_A_TIME = 8;
    private static final long COMPARED_SEEDS = 100;

    @ParameterizedTest
    @EnumSource(value = Mutation.class, mode = EnumSource.Mode.EXCLUDE, names = "NONE")
    void shouldCatchEveryMutant(Mutation mutation) {
        Optional<Simulation.Result> caught = firstCaught(mutation);
        assertThat(caught)
                .as(mutation + " was not caught within " + SEEDS_MAX + " seeds")
                .isPresent();
        System.out.printf(
                "mutant %s: caught by %s, seed %d%n",
                mutation, caught.get().violation().checker(), caught.get().seed());
        assertThat(caught.get().violation().checker()).isNotEqualTo("Crash");
    }

    /** Few seeds at a time: what runs beyond the first that shows the bug runs for nothing. */
    private static Optional<Simulation.Result> firstCaught(Mutation mutation) {
        return LongStream.range(0, SEEDS_MAX / SEEDS_AT_A_TIME)
                .map(batch -> batch * SEEDS_AT_A_TIME + lastCaughtBefore(mutation))
                .mapToObj(first -> LongStream.rangeClosed(1, SEEDS_AT_A_TIME)
                        .parallel()
                        .map(seed -> (first + seed - 1) % SEEDS_MAX + 1)
                        .mapToObj(seed -> Simulation.runMutant(seed, mutation))
                        .filter(result -> !result.passed())
                        .findFirst())
                .flatMap(Optional::stream)
                .findFirst();
    }

    /** The rarest are looked for first where one was caught; the search goes round, so a change of the draw costs time only. */
    private static long lastCaughtBefore(Mutation mutation) {
        return switch (mutation) {
            case OFFERED_BEFORE_WRITTEN -> 120;
            case GENERATION_IGNORED -> 48;
            case FREED_BEFORE_COPIED -> 32;
            default -> 0;
        };
    }

    @Test
    void shouldLetNoDamagedPageArriveWhereAllAreCompared() {
        LongStream.rangeClosed(1, COMPARED_SEEDS).parallel().forEach(seed -> {
            Simulation.Result result = Simulation.runComparing(seed, Mutation.PAYLOAD_DAMAGED);
            assertThat(result.passed()).as(result.report()).isTrue();
        });
    }
}
