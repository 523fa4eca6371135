package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import com.fasterxml.jackson.jr.ob.JSON;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Which layers leave while a forward pass runs, by the counter that the engine bumps across the boundary. */
@Timeout(900)
class EarlyLayersTest {
    private static final String LAYERS_SENT = "kv_messenger_layers_sent";
    private static final int LAYERS = EngineDouble.LAYER_COUNT;

    @Test
    void shouldSendEveryLayerOnceItIsCompleteAndNotOnlyTheFirst() {
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            beginStep(prefiller, decoder);
            for (int layer = 1; layer <= LAYERS; layer++) {
                prefiller.bump();
                prefiller.awaitCounter(LAYERS_SENT, layer);
            }
            prefiller.endStep(1);
            decoder.await("arrived", "d");
        }
    }

    @Test
    void shouldSendALayerOneBumpLaterWhereOneBumpDoesNotProveItOnAllRanks() throws Exception {
        try (EngineDouble prefiller = new EngineDouble("prefiller", Map.of(), Map.of(), 1);
                EngineDouble decoder = EngineDouble.of("decoder")) {
            beginStep(prefiller, decoder);
            for (int bumps = 1; bumps <= LAYERS; bumps++) {
                prefiller.bump();
                prefiller.awaitCounter(LAYERS_SENT, bumps - 1);
                assertThat(sentWhenQuiet(prefiller)).isEqualTo(bumps - 1);
            }
            prefiller.endStep(1);
            prefiller.awaitCounter(LAYERS_SENT, LAYERS);
            decoder.await("arrived", "d");
        }
    }

    /** The decoder has granted, its pages can be reached, and a pass over one page begins. */
    private static void beginStep(EngineDouble prefiller, EngineDouble decoder) {
        int tokens = EngineDouble.PAGE_TOKENS;
        decoder.fetch("d", "t", prefiller.opened, tokens, 0, List.of(2));
        prefiller.awaitGauge("kv_messenger_grants_waiting", 1);
        prefiller.beginStep(1, "p", "t", tokens, 0, tokens, List.of(5));
    }

    /** Layers sent, when the messenger has looked at the counter since it was bumped and nothing is under way. */
    private static int sentWhenQuiet(EngineDouble prefiller) throws Exception {
        for (int cycles = 0; cycles < 2 || prefiller.held().contains("writesInFlight=1"); cycles++) {
            prefiller.held(); // answered between two duty cycles
        }
        Map<?, ?> counters = (Map<?, ?>) JSON.std
                .mapFrom(prefiller.host.stats(prefiller.opened.handle()))
                .get("counters");
        return ((Number) counters.get(LAYERS_SENT)).intValue();
    }
}
