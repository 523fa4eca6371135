package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.connector.boot.RefusedException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** An error ends the transfer engine's worker: the messenger says so everywhere, and holds back nothing that it may end. */
@Timeout(900)
class DeadWorkerTest {
    private static final int POLL_BYTES = 1 << 20;
    private static final int PROMPT_TOKENS = 2 * EngineDouble.PAGE_TOKENS;

    /** Over tcp, since this engine's memory cannot be mapped: it receives by itself, so that nothing comes any more. */
    @ParameterizedTest(name = "path open: {0}")
    @ValueSource(booleans = {false, true})
    void shouldFailItsFetchesTurnRedAndAnswerPollsWithASentence(boolean open) throws Exception {
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            decoder.fetch("d1", "t1", prefiller.opened, PROMPT_TOKENS, 0, List.of(1, 2));
            decoder.awaitCounter("kv_messenger_grants_sent", 1);
            if (open) {
                decoder.awaitCounter("kv_messenger_paths_opened", 1);
            }
            endWorker(decoder);

            awaitReported(decoder, "\"failed\"", "\"d1\"");
            awaitRed(decoder);
            decoder.submit(EngineDouble.fetchCommand(
                    "d2", "t2", List.of(Map.of("host", "127.0.0.1", "port", 1)), PROMPT_TOKENS, 0, List.of(3, 4)));
            awaitReported(decoder, "\"failed\"", "\"d2\"", "OutOfMemoryError", "restarted");
            assertThatThrownBy(() -> pollAll(decoder))
                    .isInstanceOf(RefusedException.class)
                    .hasMessageContaining("the messenger of test-decoder is dead");
            assertThat(decoder.clean()).isTrue();
        }
    }

    @Test
    void shouldNotifyTheDecodersOfADeadPrefillerAndGiveItsPagesBack() throws Exception {
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            decoder.fetch("d1", "t1", prefiller.opened, PROMPT_TOKENS, 0, List.of(1, 2));
            decoder.awaitCounter("kv_messenger_grants_sent", 1);
            endWorker(prefiller);

            decoder.await("failed", "d1");
            prefiller.compute(1, "p1", "t1", PROMPT_TOKENS, 0, PROMPT_TOKENS, List.of(5, 6), List.of(5, 6));
            prefiller.submit(Map.of("do", "prefillEnded", "request", "p1", "outcome", "finished"));
            awaitReported(prefiller, "\"released\"", "\"p1\"");
            awaitRed(prefiller);
        }
    }

    private static void pollAll(EngineDouble engine) {
        while (engine.host.poll(engine.opened.handle(), POLL_BYTES).length > 0) {}
    }

    /** Polls until events have all these words; a dead messenger refuses polls that find none. */
    private static void awaitReported(EngineDouble engine, String... words) throws InterruptedException {
        String reported = "";
        while (!Stream.of(words).allMatch(reported::contains)) {
            try {
                byte[] json = engine.host.poll(engine.opened.handle(), POLL_BYTES);
                reported += new String(json, StandardCharsets.UTF_8);
            } catch (RefusedException refused) {
                assertThat(refused).hasMessageContaining("is dead");
            }
            Thread.sleep(1);
        }
    }

    private static void awaitRed(EngineDouble engine) throws Exception {
        try (HttpClient client = HttpClient.newHttpClient()) {
            URI page = URI.create("http://127.0.0.1:" + engine.opened.metricsPort() + "/health");
            HttpResponse<String> answer = null;
            while (answer == null || answer.statusCode() == 200) {
                answer = client.send(HttpRequest.newBuilder(page).build(), HttpResponse.BodyHandlers.ofString());
                Thread.sleep(1);
            }
            assertThat(answer.statusCode()).isEqualTo(503);
            assertThat(answer.body()).contains("OutOfMemoryError");
        }
    }

    /** Nothing but an error of the worker's own code ends it; so the test puts one there. */
    private static void endWorker(EngineDouble engine) throws ReflectiveOperationException {
        Object messenger = ((Map<?, ?>) field(engine.host, "open")).get(engine.opened.handle());
        List<?> groups = (List<?>) field(field(field(messenger, "transfer"), "domainGroups"), "all");
        Object worker = field(groups.getFirst(), "worker");
        Method execute = worker.getClass().getDeclaredMethod("execute", Runnable.class);
        execute.setAccessible(true);
        execute.invoke(worker, (Runnable) () -> {
            throw new OutOfMemoryError("injected by a test");
        });
    }

    private static Object field(Object owner, String name) throws ReflectiveOperationException {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }
}
