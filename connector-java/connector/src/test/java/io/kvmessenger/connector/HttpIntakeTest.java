package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.TransferKey;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ProxySelector;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
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

    /** In which a client notices that its connection was closed. Where it does not, less is tested, and nothing fails. */
    private static final long CLOSED_HEARD_MILLIS = 500;

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
            assertThat(asked.get().path()).isEqualTo("/v1/completions");
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
            assertThat(asked.get().path()).isEqualTo("/v1/completions");
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

            Asked seen = asked.get();
            assertThat(seen.path()).isEqualTo("/v1/completions");
            assertThat(seen.authorization()).isEqualTo("Bearer a key");
            assertThat(seen.body())
                    .containsEntry("prompt", List.of(7, 8))
                    .containsEntry("max_tokens", 1)
                    .containsEntry("cache_salt", "salt")
                    .containsEntry("priority", 3);
        }
    }

    private static void ask(EngineDouble asker, EngineDouble source) {
        Map<String, Object> command = new HashMap<>();
        command.put("do", "ask");
        command.put("request", "d");
        command.put("transfer", "q");
        command.put("promptDigest", "ab");
        command.put("prefillers", List.of(Map.of("host", "127.0.0.1", "port", source.opened.controlPort())));
        command.put("promptTokenIds", List.of(7, 8));
        command.put("cacheSalt", "salt");
        command.put("priority", 3);
        command.put("limitMillis", EngineDouble.HOUR_MILLIS);
        asker.submit(command);
    }

    private static void offer(EngineDouble source, int heldTokens, List<?> groups, String reason) {
        Map<String, Object> command = new HashMap<>();
        command.put("do", "offer");
        command.put("request", "o");
        command.put("transfer", "q");
        command.put("promptDigest", "ab");
        command.put("asked", true);
        command.put("heldTokens", heldTokens);
        command.put("groups", groups);
        command.put("reason", reason);
        source.submit(command);
    }

    private static void assertOffered(EngineDouble asker, int heldTokens, String reason) {
        assertThat(asker.await("offered", "d"))
                .containsEntry("heldTokens", heldTokens)
                .containsEntry("reason", reason);
    }

    /** The engine finds the question in a request that it can compute in one token, and so wakes up for it. */
    @Test
    void shouldBringAQuestionForACachedPrefixToItsEngineAndItsAnswerBack() throws Exception {
        List<Integer> pages = List.of(5);
        try (EngineDouble source = new EngineDouble("prefiller", api("/v1"), Map.of());
                EngineDouble asker = EngineDouble.of("decoder")) {
            ask(asker, source);

            Asked seen = asked.get();
            assertThat(seen.path()).isEqualTo("/v1/completions");
            assertThat(seen.body())
                    .containsEntry("prompt", List.of(7, 8))
                    .containsEntry("max_tokens", 1)
                    .containsEntry("cache_salt", "salt")
                    .containsEntry("priority", 3)
                    .containsEntry("kv_transfer_params", Map.of("asked_by_transfer", "q", "asked_digest", "ab"));
            offer(source, PROMPT_TOKENS, List.of(Map.of("firstPage", 0, "pages", pages)), "");
            assertOffered(asker, PROMPT_TOKENS, "");
            Map<String, Object> fetch = new HashMap<>(EngineDouble.fetchCommand(
                    "d",
                    "q",
                    List.of(Map.of("host", "127.0.0.1", "port", source.opened.controlPort())),
                    PROMPT_TOKENS,
                    0,
                    List.of(1)));
            fetch.put("promptDigest", "ab");
            asker.submit(fetch);
            asker.await("arrived", "d");
            source.await("released", "o");
        }
    }

    /** An engine aborts what its client has left, and so computes nothing for a question. */
    @Test
    void shouldLeaveTheRequestOfAQuestionThatIsAnswered() throws Exception {
        try (ServerSocket api = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
                EngineDouble source = new EngineDouble(
                        "prefiller", Map.of("engineApiUrl", "http://127.0.0.1:" + api.getLocalPort()), Map.of());
                EngineDouble asker = EngineDouble.of("decoder")) {
            ask(asker, source);
            try (Socket question = api.accept()) {
                assertThat(question.getInputStream().read()).isEqualTo('P');
                offer(source, 0, List.of(), "not_held");
                assertOffered(asker, 0, "not_held");
                readToTheEnd(question.getInputStream());
            }
        }
    }

    /**
     * The intake's one thread may be held up, here by an address that refuses. What it has not sent by the end of a
     * question it does not send, not even again after a closed connection.
     */
    @Test
    void shouldSendNothingForAQuestionThatIsOver() throws Exception {
        CountDownLatch heldUp = new CountDownLatch(1);
        CountDownLatch goesOn = new CountDownLatch(1);
        EngineCommand.Prompt prompt = new EngineCommand.Prompt(new int[] {7, 8}, "", 0);
        try (ReservedPort port = new ReservedPort();
                HttpIntake intake = new HttpIntake(
                        "http://right-first.invalid:" + port.number(),
                        "",
                        Duration.ofMinutes(10),
                        Duration.ofHours(1),
                        (transfer, why) -> {
                            heldUp.countDown();
                            await(goesOn);
                        })) {
            ServerSocket api = new ServerSocket(port.number(), 8, InetAddress.getLoopbackAddress());
            intake.ask(question("closed"), prompt);
            Socket closed = requestTo(api);
            api.close();
            intake.ask(question("refused"), prompt);
            heldUp.await();
            intake.endAsk(question("closed"));
            intake.ask(question("late"), prompt);
            intake.endAsk(question("late"));
            closed.close();
            Thread.sleep(CLOSED_HEARD_MILLIS);
            try (ServerSocket again = new ServerSocket(port.number(), 8, InetAddress.getLoopbackAddress())) {
                goesOn.countDown();
                intake.ask(question("open"), prompt);
                try (Socket open = requestTo(again)) {
                    assertThat(readRequest(open.getInputStream())).contains("\"open\"");
                }
            }
        }
    }

    private static TransferKey question(String id) {
        return new TransferKey(id, "ab");
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    /** The next connection with a request: others only try the address. */
    private static Socket requestTo(ServerSocket api) throws IOException {
        while (true) {
            Socket connection = api.accept();
            if (connection.getInputStream().read() == 'P') {
                return connection;
            }
            connection.close();
        }
    }

    private static void readToTheEnd(InputStream stream) throws IOException {
        try {
            stream.transferTo(OutputStream.nullOutputStream());
        } catch (SocketException reset) {
            assertThat(reset).hasMessageContaining("reset");
        }
    }

    /** Its other limits are an hour. */
    @Test
    void shouldOfferNothingAtOnceWhenTheEngineRefusesTheQuestion() {
        status = 500;
        Map<String, Object> options = new HashMap<>(api(""));
        options.put("offerLimitMillis", EngineDouble.HOUR_MILLIS);
        try (EngineDouble source = new EngineDouble("prefiller", options, Map.of());
                EngineDouble asker = EngineDouble.of("decoder")) {
            ask(asker, source);
            assertOffered(asker, 0, "busy");
        }
    }

    @Test
    void shouldOfferNothingWhereItsEnginesAddressIsNotKnown() {
        try (EngineDouble source = EngineDouble.of("prefiller");
                EngineDouble asker = EngineDouble.of("decoder")) {
            ask(asker, source);
            assertOffered(asker, 0, "unavailable");
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

    /**
     * An engine closes all kept connections of a burst at the same time, so a second request must not find another of
     * them. A client may still be reading an answer when the next prompt comes: prompts follow until one was closed on.
     */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldAskAgainOnAConnectionOfItsOwnWhereTheEngineHasClosedThoseThatWereKept(boolean reset) throws Exception {
        try (ClosingEngine engine = new ClosingEngine(reset);
                EngineDouble prefiller = new EngineDouble("prefiller", Map.of("engineApiUrl", engine.url()), Map.of());
                EngineDouble decoder = EngineDouble.of("decoder")) {
            for (int prompt = 0; prompt < ClosingEngine.BURST; prompt++) {
                fetch(decoder, prefiller, "burst" + prompt, "t" + prompt);
            }
            for (int prompt = 0; prompt < ClosingEngine.BURST; prompt++) {
                engine.answered.take();
            }
            for (int prompt = 0; engine.closedOn.isEmpty(); prompt++) {
                fetch(decoder, prefiller, "single" + prompt, "s" + prompt);

                assertThat(engine.answered.take()).contains("\"s" + prompt + "\"");
            }
        }
    }

    /** Answers the first request of each connection, and closes the connection without an answer at the second. */
    private static final class ClosingEngine implements AutoCloseable {
        /** First requests that wait for each other, so that each has a connection. */
        static final int BURST = 3;

        private static final String OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

        private final boolean reset;
        private final CountDownLatch burst = new CountDownLatch(BURST);
        private final BlockingQueue<String> answered = new LinkedBlockingQueue<>();
        private final Queue<String> closedOn = new ConcurrentLinkedQueue<>();
        private final ServerSocket listener = new ServerSocket(0, 8, InetAddress.getLoopbackAddress());

        /** @param reset whether the request is left unread, so that the client gets a reset and not an orderly end */
        ClosingEngine(boolean reset) throws IOException {
            this.reset = reset;
            Thread.ofVirtual().start(this::accept);
        }

        String url() {
            return "http://127.0.0.1:" + listener.getLocalPort();
        }

        private void accept() {
            try {
                while (true) {
                    Socket connection = listener.accept();
                    Thread.ofVirtual().start(() -> serve(connection));
                }
            } catch (IOException closed) {
                // the test has ended
            }
        }

        private void serve(Socket connection) {
            try (connection) {
                String request = readRequest(connection.getInputStream());
                burst.countDown();
                burst.await();
                connection.getOutputStream().write(OK.getBytes(StandardCharsets.US_ASCII));
                answered.add(request);
                InputStream from = connection.getInputStream();
                closedOn.add(reset ? "" + from.read() : readRequest(from));
            } catch (IOException | InterruptedException ended) {
                // the client, or the test, has ended
            }
        }

        @Override
        public void close() throws IOException {
            listener.close();
        }
    }

    /** The body, read whole: a connection with bytes that were not read would be reset, not closed. */
    private static String readRequest(InputStream from) throws IOException {
        StringBuilder head = new StringBuilder();
        while (!head.toString().endsWith("\r\n\r\n")) {
            int next = from.read();
            if (next < 0) {
                throw new EOFException();
            }
            head.append((char) next);
        }
        Matcher length = Pattern.compile("(?i)content-length: (\\d+)").matcher(head);
        assertThat(length.find()).isTrue();
        return new String(from.readNBytes(Integer.parseInt(length.group(1))), StandardCharsets.UTF_8);
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
