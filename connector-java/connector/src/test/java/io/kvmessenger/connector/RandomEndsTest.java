package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.connector.boot.OpenResult;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Whole messengers end at any moment of what they do with each other, with limits of an hour: what waits for the other
 * side is ended by its end alone, whichever of two events comes first. The order is the machine's; a seed draws pauses.
 */
@Timeout(900)
class RandomEndsTest {
    private static final int RUNS = 20;
    private static final int PROMPT_TOKENS = 40;
    private static final long PAUSE_MAX_NS = 3_000_000;

    private SplittableRandom random = new SplittableRandom(0);

    @ParameterizedTest
    @CsvSource({"tcp, 1", "shm, 2"})
    void shouldEndEachFetchWithItsPrefiller(String transport, long seed) {
        for (int run = 0; run < RUNS; run++) {
            random = new SplittableRandom(seed * RUNS + run);
            endPrefiller(Map.of("transports", List.of(transport)));
        }
    }

    private void endPrefiller(Map<String, Object> options) {
        try (EngineDouble decoder = new EngineDouble("decoder", options, Map.of())) {
            EngineDouble prefiller = new EngineDouble("prefiller", options, Map.of());
            SplittableRandom beside = random.split();
            CompletableFuture<List<String>> asked =
                    CompletableFuture.supplyAsync(() -> fetchSome(decoder, prefiller.opened, beside));
            if (random.nextBoolean()) {
                asked.join();
            }
            computeSome(prefiller);
            prefiller.close();
            asked.join().forEach(decoder::awaitEnd);
            decoder.awaitClean();
            decoder.awaitGauge("kv_messenger_sessions_open", 0);
        }
    }

    @ParameterizedTest
    @CsvSource({"tcp, 3", "shm, 4"})
    void shouldLetGoOfEachPromptWithItsDecoder(String transport, long seed) {
        for (int run = 0; run < RUNS; run++) {
            random = new SplittableRandom(seed * RUNS + run);
            endDecoder(Map.of("transports", List.of(transport)));
        }
    }

    private void endDecoder(Map<String, Object> options) {
        try (EngineDouble prefiller = new EngineDouble("prefiller", options, Map.of())) {
            EngineDouble decoder = new EngineDouble("decoder", options, Map.of());
            SplittableRandom beside = random.split();
            CompletableFuture<List<String>> asked =
                    CompletableFuture.supplyAsync(() -> fetchSome(decoder, prefiller.opened, beside));
            List<String> begun = computeSome(prefiller);
            assertThat(asked.join()).isNotEmpty();
            decoder.close();
            prefiller.awaitGauge("kv_messenger_sessions_open", 0);
            for (String request : begun) {
                prefiller.submit(Map.of("do", "prefillEnded", "request", request, "outcome", "aborted"));
                prefiller.await("released", request);
            }
            prefiller.awaitClean();
        }
    }

    /** Fetches some prompts, and gives some up. Returns the requests. */
    private static List<String> fetchSome(EngineDouble decoder, OpenResult prefiller, SplittableRandom random) {
        List<String> requests = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            pause(random);
            decoder.fetch("d" + i, "t" + i, prefiller, PROMPT_TOKENS, 0, pages(i));
            requests.add("d" + i);
            if (random.nextInt(5) == 0) {
                pause(random);
                decoder.submit(Map.of("do", "abandon", "request", "d" + i));
            }
        }
        return requests;
    }

    /** Computes some prompts, some of them to the end. Returns the requests. */
    private List<String> computeSome(EngineDouble prefiller) {
        List<String> requests = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            pause(random);
            if (random.nextInt(5) == 0) {
                continue; // its prompt never comes
            }
            String request = "p" + i;
            requests.add(request);
            prefiller.compute(2 * i + 1, request, "t" + i, PROMPT_TOKENS, 0, 32, pages(i).subList(0, 2), pages(i));
            pause(random);
            if (random.nextBoolean()) {
                prefiller.compute(2 * i + 2, request, "t" + i, PROMPT_TOKENS, 32, 40, pages(i).subList(2, 3), pages(i));
            }
        }
        pause(random);
        return requests;
    }

    private static List<Integer> pages(int transfer) {
        return List.of(3 * transfer + 1, 3 * transfer + 2, 3 * transfer + 3);
    }

    /** Nothing is awaited by it: it only draws the order of what two threads do. */
    private static void pause(SplittableRandom random) {
        if (random.nextBoolean()) {
            LockSupport.parkNanos(random.nextLong(PAUSE_MAX_NS));
        }
    }
}
