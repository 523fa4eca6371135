package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.sim.Scenario.Weather;
import org.junit.jupiter.api.Test;

/** One prefiller and many times more decoders than it has places for: each request is served, and every byte is right. */
class ManyDecodersTest {
    private static final int DECODERS = Integer.getInteger("kvmessenger.sim.decoders", 300);
    /** Above the number of decoders that are busy at a time, and far below that of all. */
    private static final int PLACES = 64;

    private static final int KEPT = 16;
    private static final int REQUESTS = DECODERS;

    private static Simulation.Result run(int decoders, Mutation mutation) {
        Scenario scenario = Scenario.ofManyDecoders(1, decoders, PLACES, KEPT, REQUESTS);
        return Simulation.run(Weather.QUIET, scenario, mutation);
    }

    @Test
    void shouldServeThemAll() {
        Simulation.Result result = run(DECODERS, Mutation.NONE);
        int requests = result.countByKind().getOrDefault("request", 0);
        System.out.printf(
                "%d decoders, %d places: %d requests, %d handshakes, %d left, %d refused%n",
                DECODERS,
                PLACES,
                requests,
                result.countByKind().getOrDefault("send ATTACH", 0),
                result.countByKind().getOrDefault("leaves", 0),
                result.countByKind().getOrDefault("send REFUSAL", 0));
        assertThat(result.passed()).as(result.report()).isTrue();
        assertThat(requests).isEqualTo(REQUESTS + DECODERS);
        assertThat(result.countByKind()).containsEntry("arrived", requests).doesNotContainKey("send REFUSAL");
        assertThat(result.countByKind().get("leaves")).isGreaterThan(DECODERS);
    }

    @Test
    void shouldNotServeDecodersThatDoNotDialAgain() {
        assertThat(run(2 * PLACES, Mutation.DIALS_ONCE).passed()).isFalse();
    }
}
