package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A prompt of a million tokens in chunks of 512, on 126 layers, between two real messengers: every byte is compared. */
@Timeout(900)
class LongPromptTest {
    private static final int PROMPT_TOKENS = 1_000_000;
    private static final int CHUNK_TOKENS = 512;
    private static final int LOG_LINE_LENGTH_MAX_BYTES = 1024;
    private static final String TRANSFER = "million";
    private static final long SEED = 7;

    /** As the engine asks for it with the most words: {@code timelines} "full". */
    @ParameterizedTest(name = "over {0}, {1} first")
    @CsvSource({"shm,decoder", "tcp,decoder", "tcp,prefiller"})
    void shouldBringAMillionTokensAndLogOneShortLine(String transport, String first) {
        Map<String, Object> options = Map.of("transports", List.of(transport), "timelines", "full");
        try (LongPromptEngine prefiller = new LongPromptEngine("prefiller", PROMPT_TOKENS, options);
                LongPromptEngine decoder = new LongPromptEngine("decoder", PROMPT_TOKENS, options)) {
            long beganNs = System.nanoTime();
            if (first.equals("decoder")) {
                decoder.fetch(TRANSFER, prefiller, PROMPT_TOKENS);
            }
            prefiller.compute(TRANSFER, SEED, PROMPT_TOKENS, CHUNK_TOKENS);
            long computedNs = System.nanoTime();
            if (!first.equals("decoder")) {
                decoder.fetch(TRANSFER, prefiller, PROMPT_TOKENS);
            }
            decoder.await("arrived", TRANSFER);
            prefiller.await("released", TRANSFER);
            long endedNs = System.nanoTime();

            assertThat(decoder.wrongBytes(SEED, PROMPT_TOKENS)).isZero();
            assertThat(onlyLine(prefiller)).contains("\"chunkCount\":1954", "\"layersSent\":246204");
            assertThat(onlyLine(decoder)).contains("\"pages\":62500");
            assertThat(prefiller.held()).contains("clean=true");
            assertThat(decoder.held()).contains("clean=true");
            System.out.printf(
                    "a million tokens over %s, %s first: computed in %.1f s, arrived %.1f s later%n",
                    transport, first, (computedNs - beganNs) / 1e9, (endedNs - computedNs) / 1e9);
        }
    }

    /** Beside what the engine waits for, and the connection: one timeline, which becomes one line of its log. */
    private static String onlyLine(LongPromptEngine engine) {
        byte[] line = EngineDouble.encode(engine.await("timeline", TRANSFER));
        assertThat(engine.polled.events).allMatch(event -> "connected".equals(event.get("event")));
        assertThat(line.length).isLessThan(LOG_LINE_LENGTH_MAX_BYTES);
        return new String(line, StandardCharsets.UTF_8);
    }
}
