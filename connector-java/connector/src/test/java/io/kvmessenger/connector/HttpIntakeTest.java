package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import io.kvmessenger.connector.boot.RefusedException;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ProxySelector;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** How a prefiller asks its own engine for a prompt that only a decoder was given, and what comes of its answer. */
@Timeout(900)
class HttpIntakeTest {
    private static final int PROMPT_TOKENS = 2;

    private record Asked(String path, String authorization, Map<String, Object> body) {}

    private final CompletableFuture<Asked> asked = new CompletableFuture<>();
    private HttpServer engineApi;
    private int status = 200;
    private String answer = "{}";

    @BeforeEach
    void listen() throws IOException {
        engineApi = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 1);
        engineApi.createContext("/", this::answer);
        engineApi.start();
    }

    @AfterEach
    void stop() {
        engineApi.stop(0);
    }

    private void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            asked.complete(new Asked(
                    exchange.getRequestURI().getPath(),
                    String.valueOf(exchange.getRequestHeaders().getFirst("Authorization")),
                    JSON.std.mapFrom(exchange.getRequestBody().readAllBytes())));
            byte[] body = answer.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(status, body.length);
            exchange.getResponseBody().write(body);
        }
    }

    private Map<String, Object> api(String path) {
        return Map.of(
                "engineApiUrl", "http://127.0.0.1:" + engineApi.getAddress().getPort() + path, "engineApiKey", "a key");
    }

    /** A JVM's system properties, or an operator's agent, may name a proxy, which knows no pod's own server. */
    @Test
    void shouldAskNoProxyForItsOwnEngine() throws Exception {
        ProxySelector before = ProxySelector.getDefault();
        ProxySelector.setDefault(ProxySelector.of(new InetSocketAddress(InetAddress.getLoopbackAddress(), 9)));
        try (EngineDouble prefiller = new EngineDouble("prefiller", api("/v1"), Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, prefiller);
            assertThat(asked.get(60, TimeUnit.SECONDS).path()).isEqualTo("/v1/completions");
        } finally {
            ProxySelector.setDefault(before);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"wrong-first.invalid", "right-first.invalid", "last-of-three.invalid"})
    void shouldAskItsEngineAtWhicheverAddressItListens(String name) throws Exception {
        String url = "http://" + name + ":" + engineApi.getAddress().getPort();
        try (EngineDouble prefiller = new EngineDouble("prefiller", Map.of("engineApiUrl", url), Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, prefiller);
            assertThat(asked.get(60, TimeUnit.SECONDS).path()).isEqualTo("/v1/completions");
        }
    }

    @Test
    void shouldNameEachAddressAtWhichItsEngineDoesNotListen() {
        String url = "http://none.invalid:" + engineApi.getAddress().getPort();
        try (EngineDouble prefiller = new EngineDouble("prefiller", Map.of("engineApiUrl", url), Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, prefiller);
            assertThat((String) decoder.await("failed", "d").get("reason"))
                    .contains("127.0.0.9: Connection refused; 127.0.0.8: Connection refused");
        }
    }

    private static void fetch(EngineDouble decoder, EngineDouble prefiller) {
        fetch(decoder, prefiller, "d", "t");
    }

    private static void fetch(EngineDouble decoder, EngineDouble prefiller, String request, String transfer) {
        Map<String, Object> command = new HashMap<>(EngineDouble.fetchCommand(
                request,
                transfer,
                List.of(Map.of("host", "127.0.0.1", "port", prefiller.opened.controlPort())),
                PROMPT_TOKENS,
                0,
                List.of(1)));
        command.putAll(Map.of("promptTokenIds", List.of(7, 8), "cacheSalt", "salt", "priority", 3));
        decoder.submit(command);
    }

    @Test
    void shouldSendPromptKeySaltAndPriorityToTheCompletionsOfTheEngine() throws Exception {
        try (EngineDouble prefiller = new EngineDouble("prefiller", api("/v1/"), Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, prefiller);

            Asked seen = asked.get(20, TimeUnit.SECONDS);
            assertThat(seen.path()).isEqualTo("/v1/completions");
            assertThat(seen.authorization()).isEqualTo("Bearer a key");
            assertThat(seen.body())
                    .containsEntry("prompt", List.of(7, 8))
                    .containsEntry("max_tokens", 1)
                    .containsEntry("cache_salt", "salt")
                    .containsEntry("priority", 3);
        }
    }

    @Test
    void shouldDeclineAtOnceWithAShortSentenceWhenTheEngineRefuses() {
        status = 500;
        answer = "<html>\n" + "x".repeat(1 << 20);
        try (EngineDouble prefiller = new EngineDouble("prefiller", api(""), Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, prefiller);

            assertThat((String) decoder.await("failed", "d").get("reason"))
                    .contains("engine_api_url", "status 500: <html> xxx")
                    .hasSizeLessThan(HttpIntake.ANSWER_SHOWN_MAX + 300);
        }
    }

    @Test
    void shouldNameTheOptionWhenTheEngineAsksForAKey() {
        status = 401;
        try (EngineDouble prefiller = new EngineDouble("prefiller", api(""), Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, prefiller);

            assertThat((String) decoder.await("failed", "d").get("reason")).contains("status 401", "engine_api_key");
        }
    }

    @Test
    void shouldAskAgainWhereTheEngineHasClosedAConnectionThatWasKept() throws Exception {
        CompletableFuture<Boolean> first = new CompletableFuture<>();
        CompletableFuture<Boolean> second = new CompletableFuture<>();
        try (ServerSocket engine = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Thread.ofVirtual().start(() -> {
                try (Socket kept = engine.accept()) {
                    answerOne(kept);
                    first.complete(true);
                    readRequest(kept.getInputStream());
                    kept.shutdownOutput();
                    try (Socket another = engine.accept()) {
                        answerOne(another);
                        second.complete(true);
                    }
                } catch (IOException e) {
                    second.completeExceptionally(e);
                }
            });
            Map<String, Object> api = Map.of("engineApiUrl", "http://127.0.0.1:" + engine.getLocalPort());
            try (EngineDouble prefiller = new EngineDouble("prefiller", api, Map.of());
                    EngineDouble decoder = EngineDouble.of("decoder")) {
                fetch(decoder, prefiller, "d", "t");
                first.get(20, TimeUnit.SECONDS);
                fetch(decoder, prefiller, "e", "u");

                assertThat(second.get(20, TimeUnit.SECONDS)).isTrue();
            }
        }
    }

    private static void answerOne(Socket connection) throws IOException {
        readRequest(connection.getInputStream());
        connection
                .getOutputStream()
                .write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".getBytes(StandardCharsets.US_ASCII));
        connection.getOutputStream().flush();
    }

    /** All of it: a connection with bytes that were not read would be reset, not closed. */
    private static void readRequest(InputStream from) throws IOException {
        StringBuilder head = new StringBuilder();
        while (!head.toString().endsWith("\r\n\r\n")) {
            head.append((char) from.read());
        }
        Matcher length = Pattern.compile("(?i)content-length: (\\d+)").matcher(head);
        assertThat(length.find()).isTrue();
        from.readNBytes(Integer.parseInt(length.group(1)));
    }

    @Test
    void shouldNameTheTrustStoreWhenTheEnginesCertificateIsNotTrusted(@TempDir Path folder) throws IOException {
        HttpsServer secured = HttpsServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 1);
        secured.setHttpsConfigurator(new HttpsConfigurator(
                new TestCertificates(folder).authority("engine").serving()));
        secured.start();
        Map<String, Object> api = Map.of(
                "engineApiUrl", "https://127.0.0.1:" + secured.getAddress().getPort());
        try (EngineDouble prefiller = new EngineDouble("prefiller", api, Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, prefiller);

            assertThat((String) decoder.await("failed", "d").get("reason"))
                    .contains("engine_api_url", "jvm_options", "-Djavax.net.ssl.trustStore=FILE", "PKIX");
        } finally {
            secured.stop(0);
        }
    }

    @Test
    void shouldRefuseAMalformedUrlWhenItOpens() {
        for (String url : List.of("http://a b:8000", "ftp://host", "http://", "http://host:8000?x=1", "host:8000")) {
            assertThatThrownBy(() -> new EngineDouble("prefiller", Map.of("engineApiUrl", url), Map.of()))
                    .as(url)
                    .isInstanceOf(RefusedException.class)
                    .hasMessageContaining("engine_api_url is '" + url + "', expected a URL like");
        }
    }
}
