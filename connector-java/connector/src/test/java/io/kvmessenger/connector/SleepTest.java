package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.connector.boot.RefusedException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Whole messengers of which one makes room for a messenger without memory, and comes back at the same port. */
@Timeout(900)
class SleepTest {
    private static final int PROMPT_TOKENS = 40;
    private static final List<Integer> SOURCE_PAGES = List.of(9, 4, 17);
    private static final List<Integer> TARGET_PAGES = List.of(3, 30, 12);
    private static final String SENTENCE =
            "engine test-prefiller sleeps, and its KV memory was given back: wake it up, or send the request to another"
                    + " one";

    private final MessengerHost host = new MessengerHost();

    @ParameterizedTest
    @ValueSource(strings = {"", "a secret of some length"})
    void shouldRefuseAFetchWhileAsleepAndServeAgainAfterwards(String secret) {
        Map<String, Object> options = Map.of("sharedSecret", secret);
        try (EngineDouble d = new EngineDouble("decoder", options, Map.of())) {
            EngineDouble p = new EngineDouble("prefiller", options, Map.of());
            transfer(p, d, "1");
            d.fetch("waiting", "waiting", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.awaitGauge("kv_messenger_grants_waiting", 1);
            p.close("sleeps");
            assertThat(d.await("failed", "waiting")).containsEntry("reason", "test-prefiller sleeps");
            OpenResult asleep = fallAsleep("prefiller", p.opened.controlPort(), options);
            assertThat(asleep.controlPort()).isEqualTo(p.opened.controlPort());
            for (String request : List.of("d2", "d3")) {
                d.fetch(request, request, asleep, PROMPT_TOKENS, 0, TARGET_PAGES);
                assertThat(d.await("failed", request).get("reason").toString()).endsWith(SENTENCE);
            }
            host.close(asleep.handle());
            Map<String, Object> samePort = new HashMap<>(options);
            samePort.put("listenPort", asleep.controlPort());
            try (EngineDouble again = new EngineDouble("prefiller", samePort, Map.of())) {
                assertThat(again.opened.controlPort()).isEqualTo(asleep.controlPort());
                transfer(again, d, "4");
                assertThat(again.clean()).isTrue();
            }
            assertThat(d.clean()).isTrue();
        }
    }

    private static void transfer(EngineDouble p, EngineDouble d, String name) {
        d.fetch("d" + name, "t" + name, p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
        p.compute(1, "p" + name, "t" + name, PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
        d.await("arrived", "d" + name);
        p.submit(Map.of("do", "prefillEnded", "request", "p" + name, "outcome", "finished"));
        p.await("released", "p" + name);
    }

    private OpenResult fallAsleep(String role, int port, Map<String, Object> changes) {
        Map<String, Object> options = EngineDouble.options(role);
        options.putAll(changes);
        options.put("listenPort", port);
        return host.open(
                EngineDouble.encode(Map.of("options", options, "subject", Map.of("kind", "sleeping_kv_cache"))));
    }

    @Test
    void shouldAnswerThePagesAndTakeNoCommands() throws Exception {
        OpenResult asleep = fallAsleep("decoder", 0, Map.of("metricsPort", 0));
        assertThat(asleep.controlPort()).isNegative();
        assertThat(asleep.layerCounterAddress()).isZero();
        try (HttpClient client = HttpClient.newHttpClient()) {
            assertThat(get(client, asleep, "/health").statusCode()).isEqualTo(200);
            HttpResponse<String> ready = get(client, asleep, "/ready");
            assertThat(ready.statusCode()).isEqualTo(503);
            assertThat(ready.body()).contains("asleep");
        }
        assertThatThrownBy(() -> host.submit(
                        asleep.handle(),
                        EngineDouble.encode(Map.of("commands", List.of(Map.of("do", "abandon", "request", "d1"))))))
                .isInstanceOf(RefusedException.class)
                .hasMessageContaining("while the engine sleeps");
        assertThat(new String(host.leakCheck(asleep.handle()), StandardCharsets.UTF_8))
                .contains("\"clean\":true");
        host.close(asleep.handle());
    }

    private static HttpResponse<String> get(HttpClient client, OpenResult opened, String page) throws Exception {
        URI address = URI.create("http://" + opened.metricsHost() + ":" + opened.metricsPort() + page);
        return client.send(HttpRequest.newBuilder(address).build(), HttpResponse.BodyHandlers.ofString());
    }
}
