package io.kvmessenger.connector.metrics;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assumptions.assumeThat;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.connector.ReservedPort;
import io.kvmessenger.connector.boot.BuildId;
import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.MessengerState.FetchRow;
import io.kvmessenger.messenger.port.MessengerState.PeerRow;
import io.kvmessenger.messenger.port.MessengerState.Span;
import io.kvmessenger.messenger.port.MessengerState.TransferRow;
import io.kvmessenger.messenger.port.SourcePrice;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferCounters;
import java.io.IOException;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class MessengerMetricsTest {
    private static final String KEY = "a-key-of-the-pages";
    private static final String WITH_KEY = "Authorization: Bearer " + KEY + "\r\n";

    private static final TransferCounters SOME_TRANSPORTS = new TransferCounters(
            MessengerMetricsTest::figure,
            List.of("shm", "tcp"),
            (transport, counter) -> transport.equals("tcp") ? figure(counter) - 1 : 1);

    private static long figure(TransferCounter counter) {
        return counter.name().hashCode() & 0xFFFF;
    }

    private final HttpClient client = HttpClient.newHttpClient();
    private final MessengerMetrics metrics =
            MessengerMetrics.open("127.0.0.1", 0, 0, KEY, MessengerMetricsTest::onSocket);

    @AfterEach
    void close() {
        metrics.close();
        client.close();
    }

    @Test
    void shouldShowEveryFigureOfTheEnumWithItsSentence() throws Exception {
        try (MessengerMetrics reported =
                MessengerMetrics.open("127.0.0.1", 0, 1, KEY, MessengerMetricsTest::onSocket)) {
            reported.follow(() -> SOME_TRANSPORTS);
            reported.show(new EngineCommand.Prices(List.of(), OptionalDouble.of(1)));
            String page = get(reported.port(), "/metrics").body();
            for (MessengerMetric metric : MessengerMetric.values()) {
                assertThat(page).contains("# HELP " + metric.metricName()).contains(metric.sentence());
            }
        }
    }

    @Test
    void shouldShowWhatWasCountedOnThePageAndInTheSnapshot() throws Exception {
        metrics.add(MessengerMetric.PAGES_SENT, 3);
        metrics.add(MessengerMetric.PAGES_SENT, 4);
        metrics.set(MessengerMetric.WINDOWS_OPEN, 2);
        metrics.observe(MessengerMetric.FETCH_SECONDS, 0.5);
        metrics.observe(MessengerMetric.FETCH_SECONDS, 0.25);

        assertThat(get("/metrics").body())
                .contains("kv_messenger_pages_sent_total 7.0")
                .contains("kv_messenger_windows_open 2.0")
                .contains("kv_messenger_fetch_seconds_count 2");
        Map<?, ?> counters = section("counters");
        assertThat(counters.get("kv_messenger_pages_sent")).isEqualTo(7);
        Map<?, ?> observed = (Map<?, ?>) section("histograms").get("kv_messenger_fetch_seconds");
        assertThat(observed.get("sum")).isEqualTo(0.75);
        List<?> buckets = (List<?>) observed.get("buckets");
        assertThat(buckets).as("the last one has no bound").hasSize(MessengerMetrics.BUCKET_COUNT + 1);
        assertThat(buckets.stream().mapToInt(count -> (Integer) count).sum()).isEqualTo(2);
        assertThat(buckets.get(13)).as("above 0.2048 s, up to 0.4096 s").isEqualTo(1);
        assertThat(section("gauges").get("kv_messenger_windows_open")).isEqualTo(2);
    }

    @Test
    void shouldDistinguishACounterByReasonOnThePageAndSumItInTheSnapshot() throws Exception {
        metrics.add(MessengerMetric.FETCHES_FAILED, FetchFailure.TIME_LIMIT);
        metrics.add(MessengerMetric.FETCHES_FAILED, FetchFailure.TIME_LIMIT);
        metrics.add(MessengerMetric.FETCHES_FAILED, FetchFailure.ABANDONED);
        assertThat(get("/metrics").body())
                .contains("kv_messenger_fetches_failed_total{reason=\"time_limit\"} 2.0")
                .contains("kv_messenger_fetches_failed_total{reason=\"abandoned\"} 1.0")
                .as("a rate needs the series before its first count")
                .contains("kv_messenger_fetches_failed_total{reason=\"damaged\"} 0.0");
        assertThat(section("counters").get("kv_messenger_fetches_failed")).isEqualTo(3);
        Map<?, ?> reasons = (Map<?, ?>) section("reasons").get("kv_messenger_fetches_failed");
        assertThat(reasons).hasSize(FetchFailure.values().length);
        assertThat(reasons.get("time_limit")).isEqualTo(2);
    }

    @Test
    void shouldSayWhichBuildItIsAndHowItsJvmIsOnThePageOnly() throws Exception {
        String page = get("/metrics").body();
        assertThat(page).containsPattern("kv_messenger_build_info\\{build=\"" + BuildId.value() + "\",.*} 1");
        assertThat(page).containsPattern("kv_messenger_jvm_heap_used_bytes [1-9]");
        assertThat(page).containsPattern("kv_messenger_jvm_gc_seconds_total [0-9]");
        assertThat(section("gauges").get("kv_messenger_jvm_threads"))
                .as("stats would load Java's management")
                .isNull();
    }

    private static int of(TransferCounter counter) {
        return (int) SOME_TRANSPORTS.of(counter);
    }

    @Test
    void shouldReadFiguresOfTransportsWhenAsked() throws Exception {
        metrics.follow(() -> SOME_TRANSPORTS);
        assertThat(get("/metrics").body())
                .contains("kv_messenger_transport_sent_bytes_total{transport=\"tcp\"} "
                        + (of(TransferCounter.BYTES_SENT) - 1) + ".0")
                .contains("kv_messenger_paths_lost_total{transport=\"shm\"} 1.0")
                .contains("kv_messenger_strays_total " + of(TransferCounter.STRAYS) + ".0")
                .contains("kv_messenger_regions_open " + of(TransferCounter.REGIONS_OPEN) + ".0");
        assertThat(section("counters").get("kv_messenger_paths_lost")).isEqualTo(of(TransferCounter.PATHS_LOST));
        assertThat(section("gauges").get("kv_messenger_regions_open")).isEqualTo(of(TransferCounter.REGIONS_OPEN));
    }

    @Test
    void shouldBeHealthyUntilSetOtherwise() throws Exception {
        assertThat(get("/health").statusCode()).isEqualTo(200);
        metrics.watch(() -> Optional.of("the messenger's thread has ended"));
        HttpResponse<String> answer = get("/health");
        assertThat(answer.statusCode()).isEqualTo(503);
        assertThat(answer.body()).isEqualTo("the messenger's thread has ended\n");
    }

    @Test
    void shouldNameTheOptionWhenThePortIsTaken() {
        assertThatThrownBy(() ->
                        MessengerMetrics.open("127.0.0.1", metrics.port(), 0, KEY, MessengerMetricsTest::onSocket))
                .isInstanceOf(RefusedException.class)
                .hasMessageContaining("metrics_port is " + metrics.port() + " on 127.0.0.1, expected a free port");
    }

    @Test
    void shouldNameTheOptionWhenTheHostIsUnknown() {
        assertThatThrownBy(
                        () -> MessengerMetrics.open("no.such.host.invalid", 0, 0, KEY, MessengerMetricsTest::onSocket))
                .isInstanceOf(RefusedException.class)
                .hasMessageContaining("metrics_host is 'no.such.host.invalid'");
    }

    @Test
    void shouldNameTheHostWhenItIsNotOfThisMachine() {
        assertThatThrownBy(() -> MessengerMetrics.open("192.0.2.1", 0, 0, KEY, MessengerMetricsTest::onSocket))
                .isInstanceOf(RefusedException.class)
                .hasMessageContaining("metrics_host is '192.0.2.1', expected an address of this machine");
    }

    @Test
    void shouldServeWhileHalfSentRequestsAreHeldOpen() throws Exception {
        List<Socket> held = new ArrayList<>();
        try {
            for (int i = 0; i < MetricsServer.CONNECTIONS_MAX - 1; i++) {
                held.add(new Socket(InetAddress.getLoopbackAddress(), metrics.port()));
                held.getLast()
                        .getOutputStream()
                        .write("GET /health HTTP/1.1\r\nHo".getBytes(StandardCharsets.US_ASCII));
            }
            assertThat(get("/health").statusCode()).isEqualTo(200);
            assertThat(get("/metrics").statusCode()).isEqualTo(200);
        } finally {
            for (Socket socket : held) {
                socket.close();
            }
        }
    }

    @Test
    void shouldCloseTheOldestConnectionForANewOne() throws Exception {
        List<Socket> held = new ArrayList<>();
        try {
            for (int i = 0; i <= MetricsServer.CONNECTIONS_MAX; i++) {
                held.add(new Socket(InetAddress.getLoopbackAddress(), metrics.port()));
            }
            assertThat(held.getFirst().getInputStream().read()).isEqualTo(-1);
            assertThat(get("/health").statusCode()).isEqualTo(200);
        } finally {
            for (Socket socket : held) {
                socket.close();
            }
        }
    }

    @Test
    void shouldServeItsPagesOnly() throws Exception {
        assertThat(get("/metricsfoo").statusCode()).isEqualTo(404);
        assertThat(get("/healthz").statusCode()).isEqualTo(404);
        assertThat(get("/health?verbose=1").statusCode()).isEqualTo(200);
        assertThat(raw("POST /metrics HTTP/1.1\r\n\r\n")).startsWith("HTTP/1.1 405");
        assertThat(raw("no http\r\n\r\n")).startsWith("HTTP/1.1 400");
        assertThat(raw("GET /health HTTP/1.1\r\nX: " + "x".repeat(PageHandler.REQUEST_LENGTH_MAX_BYTES)))
                .isEmpty();
        assertThat(raw("HEAD /health HTTP/1.1\r\n\r\n")).contains("200 OK").endsWith("\r\n\r\n");
    }

    private static MessengerState state() {
        return new MessengerState(
                List.of(new PeerRow("p at host:1", "prefiller", "ready", 250_000_000L)),
                2,
                List.of(new FetchRow("r<1>", "t", 3, 1_500_000_000L, -1, List.of("p: an imm slot", "q & r: KV"))),
                0,
                List.of(),
                0,
                List.of(),
                List.of(new TransferRow(
                        "decoder",
                        "sent<1>",
                        "t",
                        4096,
                        5,
                        List.of(new Span("grant", 0, 1_000_000), new Span("KV", 1_000_000, 4_000_000)))),
                List.of());
    }

    @Test
    void shouldShowTheStateToABrowserAndToAProgram() throws Exception {
        metrics.show(asked -> asked.complete(state()));
        HttpResponse<String> page = get("/");
        assertThat(page.headers().firstValue("Content-Type")).contains("text/html; charset=utf-8");
        assertThat(page.body())
                .contains("<p>healthy</p>", "<h2>Peers: 1</h2>", "<td>0.250 s</td>")
                .contains("<h2>Fetches: 2, the oldest 1</h2>", "<th>waits for</th>")
                .contains("<td>r&lt;1&gt;</td>", "<td>p: an imm slot<br>q &amp; r: KV</td>")
                .contains("<h2>Prefills: 0</h2>", "<h2>Last transfers: 1</h2>")
                .contains("sent&lt;1&gt;", "<title>KV: 3.00 ms</title>", "4.00 ms, 4,096 bytes");
        Map<?, ?> json = JSON.std.mapFrom(get("/state").body());
        assertThat(json.get("fetchCount")).isEqualTo(2);
        assertThat(((List<?>) json.get("fetches")).getFirst())
                .isEqualTo(Map.of(
                        "request",
                        "r<1>",
                        "transfer",
                        "t",
                        "pageCount",
                        3,
                        "ageNs",
                        1_500_000_000,
                        "leftNs",
                        -1,
                        "waitsFor",
                        List.of("p: an imm slot", "q & r: KV")));
        assertThat(((Map<?, ?>) ((List<?>) json.get("transfers")).getFirst()).get("spans"))
                .isEqualTo(List.of(
                        Map.of("what", "grant", "fromNs", 0, "untilNs", 1_000_000),
                        Map.of("what", "KV", "fromNs", 1_000_000, "untilNs", 4_000_000)));
    }

    @Test
    void shouldNotBeReadyWhileItIsDrained() throws Exception {
        assertThat(get("/ready").statusCode()).isEqualTo(200);
        assertThat(raw("POST /drain HTTP/1.1\r\nContent-Length: 0\r\n" + WITH_KEY + "\r\n"))
                .startsWith("HTTP/1.1 200");
        assertThat(get("/ready").statusCode()).isEqualTo(503);
        assertThat(get("/ready").body()).isEqualTo("draining: the engine is about to end\n");
        assertThat(get("/health").statusCode())
                .as("what is open goes on to its end")
                .isEqualTo(200);
        assertThat(raw("POST /undrain HTTP/1.1\r\n" + WITH_KEY + "\r\n")).startsWith("HTTP/1.1 200");
        assertThat(get("/ready").statusCode()).isEqualTo(200);
    }

    @Test
    void shouldNotBeReadyWhereItDoesNotWork() throws Exception {
        metrics.watch(() -> Optional.of("the messenger's thread has ended"));
        assertThat(get("/ready").statusCode()).isEqualTo(503);
        assertThat(get("/ready").body()).isEqualTo("the messenger's thread has ended\n");
    }

    @Test
    void shouldBeDrainedByNoBrowserAndByNoMistake() throws Exception {
        assertThat(raw("POST /drain HTTP/1.1\r\nOrigin: http://page.example\r\n" + WITH_KEY + "\r\n"))
                .startsWith("HTTP/1.1 403");
        assertThat(raw("GET /drain HTTP/1.1\r\n\r\n")).startsWith("HTTP/1.1 405");
        assertThat(get("/ready").statusCode()).isEqualTo(200);
    }

    /** The test's requests come from this host, as those of other pods do that a sidecar hands on. */
    @ParameterizedTest
    @ValueSource(strings = {"GET /state", "HEAD /state", "GET /", "POST /drain", "POST /undrain"})
    void shouldRefuseWhatHasNoKeyOrAWrongOne(String request) throws Exception {
        metrics.show(asked -> asked.complete(state()));
        String basic = Base64.getEncoder().encodeToString(":wrong".getBytes(StandardCharsets.UTF_8));
        for (String header : List.of(
                "",
                "Authorization: Bearer\r\n",
                "Authorization: Bearer wrong\r\n",
                "Authorization: Bearer " + KEY + "x\r\n",
                "Authorization: Basic " + basic + "\r\n",
                "Authorization: Basic =\r\n",
                "Authorization: " + KEY + "\r\n",
                "X-Forwarded-For: 127.0.0.1\r\n")) {
            assertThat(raw(request + " HTTP/1.1\r\n" + header + "\r\n"))
                    .as(header)
                    .startsWith("HTTP/1.1 401 ")
                    .contains("WWW-Authenticate: Basic")
                    .doesNotContain("r<1>", "r&lt;1");
        }
        assertThat(get("/ready").statusCode()).isEqualTo(200);
    }

    @Test
    void shouldStayClosedWithoutAKey() {
        assertThat(PageKey.opens("", "Bearer ")).isFalse();
        assertThat(PageKey.opens("", "")).isFalse();
    }

    @Test
    void shouldTakeTheKeyAsThePasswordOfAnyUser() throws Exception {
        metrics.show(asked -> asked.complete(state()));
        for (String user : List.of("", "operator")) {
            String basic = Base64.getEncoder().encodeToString((user + ":" + KEY).getBytes(StandardCharsets.UTF_8));
            assertThat(raw("GET / HTTP/1.1\r\nAuthorization: Basic " + basic + "\r\n\r\n"))
                    .startsWith("HTTP/1.1 200");
        }
    }

    /** A shell in a pod, and kubectl port-forward, dial loopback. */
    @Test
    void shouldListenOnLoopbackToo() throws Exception {
        InetAddress other = InetAddress.ofLiteral("127.0.0.1");
        for (NetworkInterface network : NetworkInterface.networkInterfaces().toList()) {
            other = network.inetAddresses()
                    .filter(address -> address instanceof Inet4Address && !address.isLoopbackAddress())
                    .findFirst()
                    .orElse(other);
        }
        assumeThat(other.isLoopbackAddress())
                .as("this machine has no other address")
                .isFalse();
        String host = other.getHostAddress();
        try (ReservedPort port = new ReservedPort(host, "127.0.0.1", "::1")) {
            listenOnLoopbackToo(host, port.number());
            assertThat(answers("127.0.0.1", port.number()))
                    .as("closed with the other")
                    .isFalse();
            sayThatLoopbackIsTaken(host, port.number());
        }
    }

    private void listenOnLoopbackToo(String host, int port) throws Exception {
        try (MessengerMetrics ofPod = MessengerMetrics.open(host, port, 0, KEY, MessengerMetricsTest::onSocket)) {
            assertThat(ofPod.notes()).isEmpty();
            assertThat(get(port, "/health").statusCode()).isEqualTo(200);
            assertThat(answers(host, port)).isTrue();
        }
    }

    private static void sayThatLoopbackIsTaken(String host, int port) throws IOException {
        try (ServerSocket taken = new ServerSocket(port, 1, InetAddress.getLoopbackAddress());
                ServerSocket taken6 = new ServerSocket(port, 1, InetAddress.ofLiteral("::1"));
                MessengerMetrics ofPod = MessengerMetrics.open(host, port, 0, KEY, MessengerMetricsTest::onSocket)) {
            assertThat(taken.isBound() && taken6.isBound()).isTrue();
            assertThat(answers(host, ofPod.port())).isTrue();
            assertThat(ofPod.notes()).singleElement().asString().contains("another program has that port");
        }
    }

    private static boolean answers(String host, int port) {
        try (Socket socket = new Socket(InetAddress.ofLiteral(host), port)) {
            return socket.isConnected();
        } catch (IOException e) {
            return false;
        }
    }

    @Test
    void shouldSayThatAMessengerDoesNotAnswer() throws Exception {
        metrics.show(asked -> asked.completeExceptionally(new IllegalStateException("a bug")));
        assertThat(get("/state").statusCode()).isEqualTo(503);
    }

    @Test
    void shouldAnswerThatThereIsNoStateYet() throws Exception {
        assertThat(get("/").statusCode()).isEqualTo(503);
        assertThat(get("/health").statusCode()).isEqualTo(200);
    }

    private String raw(String request) throws Exception {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), metrics.port())) {
            socket.getOutputStream().write(request.getBytes(StandardCharsets.US_ASCII));
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.US_ASCII);
        } catch (SocketException reset) {
            return "";
        }
    }

    @Test
    void shouldCountWithoutPagesWhenThePortIsBelowZero() {
        try (MessengerMetrics silent = MessengerMetrics.open("127.0.0.1", -1, 0, KEY, MessengerMetricsTest::onSocket)) {
            silent.add(MessengerMetric.PAGES_SENT, 1);
            assertThat(silent.port()).isEqualTo(-1);
        }
    }

    @Test
    void shouldDistinguishPeersWhenAskedTo() throws Exception {
        assertThat(get("/metrics").body()).doesNotContain("peer=");
        try (MessengerMetrics reported =
                MessengerMetrics.open("127.0.0.1", 0, 1, KEY, MessengerMetricsTest::onSocket)) {
            reported.ofPeer("d \"1\"", Optional.empty()).add(MessengerMetric.PEER_BYTES_SENT, 5);
            reported.ofPeer("e", Optional.empty()).add(MessengerMetric.PEER_BYTES_SENT, 6);
            assertThat(get(reported.port(), "/metrics").body())
                    .contains("kv_messenger_peer_sent_bytes_total{peer=\"d \\\"1\\\"\"} 5.0")
                    .contains("kv_messenger_peer_sent_bytes_total{peer=\"other\"} 6.0")
                    .contains("kv_messenger_peer_queue_seconds{peer=\"other\"} 0.0");
        }
    }

    @Test
    void shouldAnswerWhatTokensTake() throws Exception {
        SourcePrice price = new SourcePrice("h:9", 0, 0, 0, 0, 0, 2_000_000, 1, 9_000, Long.MAX_VALUE);
        metrics.show(new EngineCommand.Prices(List.of(price), OptionalDouble.empty()));
        assertThat(get("/price?peer=h:9&tokens=500").body())
                .contains("\"known\":true")
                .contains("\"transfer_seconds\":1.0,");
        assertThat(get("/price?peer=h:9").statusCode()).isEqualTo(400);
        assertThat(get("/price").statusCode()).isEqualTo(400);
        assertThat(raw("POST /price?peer=h:9&tokens=5 HTTP/1.1\r\n\r\n")).startsWith("HTTP/1.1 405 ");
        assertThat(get("/metrics").body()).doesNotContain("source=");
        try (MessengerMetrics shown = MessengerMetrics.open("127.0.0.1", 0, 1, KEY, MessengerMetricsTest::onSocket)) {
            shown.show(new EngineCommand.Prices(List.of(price, price), OptionalDouble.of(1_000_000)));
            assertThat(get(shown.port(), "/metrics").body())
                    .contains("kv_messenger_price_seconds{source=\"h:9\"} 2.0")
                    .contains("kv_messenger_price_seconds{source=\"own\"} 1.0");
        }
    }

    @Test
    void shouldFreeThePortWhenClosed() {
        try (ReservedPort port = new ReservedPort()) {
            for (int time = 0; time < 2; time++) {
                try (MessengerMetrics open =
                        MessengerMetrics.open("127.0.0.1", port.number(), 0, KEY, MessengerMetricsTest::onSocket)) {
                    assertThat(open.port()).isEqualTo(port.number());
                }
            }
        }
    }

    private static void onSocket(int localPort) {
        assertThat(localPort).isPositive();
    }

    private Map<?, ?> section(String name) throws Exception {
        return (Map<?, ?>) JSON.std.mapFrom(metrics.snapshotJson()).get(name);
    }

    private HttpResponse<String> get(String path) throws Exception {
        return get(metrics.port(), path);
    }

    private HttpResponse<String> get(int port, String path) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path))
                .header("Authorization", "Bearer " + KEY)
                .build();
        return client.send(request, HttpResponse.BodyHandlers.ofString());
    }
}
