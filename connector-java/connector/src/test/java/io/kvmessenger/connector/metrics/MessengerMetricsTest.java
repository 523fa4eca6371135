package io.kvmessenger.connector.metrics;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.messenger.MessengerMetric;
import io.kvmessenger.transfer.TransferCounters;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class MessengerMetricsTest {
    private static final TransferCounters SOME_TRANSPORTS =
            new TransferCounters(11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25);

    private final HttpClient client = HttpClient.newHttpClient();
    private final MessengerMetrics metrics = MessengerMetrics.open("127.0.0.1", 0);

    @AfterEach
    void close() {
        metrics.close();
        client.close();
    }

    @Test
    void shouldShowEveryFigureOfTheEnumWithItsSentence() throws Exception {
        String page = get("/metrics").body();
        for (MessengerMetric metric : MessengerMetric.values()) {
            assertThat(page).contains("# HELP " + metric.metricName()).contains(metric.sentence());
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
        assertThat(counters.get("kv_messenger_fetch_seconds_count")).isEqualTo(2);
        assertThat(counters.get("kv_messenger_fetch_seconds_sum")).isEqualTo(0.75);
        assertThat(section("gauges").get("kv_messenger_windows_open")).isEqualTo(2);
    }

    @Test
    void shouldReadFiguresOfTransportsWhenAsked() throws Exception {
        metrics.follow(() -> SOME_TRANSPORTS);
        assertThat(get("/metrics").body())
                .contains("kv_messenger_transport_sent_bytes_total 11.0")
                .contains("kv_messenger_strays_total 16.0")
                .contains("kv_messenger_transport_writes_sent_total 24.0")
                .contains("kv_messenger_transport_writes_saved_total 25.0")
                .contains("kv_messenger_regions_open 21.0");
        assertThat(section("counters").get("kv_messenger_paths_lost")).isEqualTo(19);
        assertThat(section("gauges").get("kv_messenger_regions_open")).isEqualTo(21);
    }

    @Test
    void shouldBeHealthyUntilToldOtherwise() throws Exception {
        assertThat(get("/health").statusCode()).isEqualTo(200);
        metrics.watch(() -> Optional.of("the messenger's thread has ended"));
        HttpResponse<String> answer = get("/health");
        assertThat(answer.statusCode()).isEqualTo(503);
        assertThat(answer.body()).isEqualTo("the messenger's thread has ended\n");
    }

    @Test
    void shouldNameTheOptionWhenThePortIsTaken() {
        assertThatThrownBy(() -> MessengerMetrics.open("127.0.0.1", metrics.port()))
                .isInstanceOf(RefusedException.class)
                .hasMessageContaining("metrics_port is " + metrics.port() + " on 127.0.0.1, expected a free port");
    }

    @Test
    void shouldNameTheOptionWhenTheHostIsUnknown() {
        assertThatThrownBy(() -> MessengerMetrics.open("no.such.host.invalid", 0))
                .isInstanceOf(RefusedException.class)
                .hasMessageContaining("metrics_host is 'no.such.host.invalid'");
    }

    @Test
    void shouldCountWithoutPagesWhenThePortIsBelowZero() {
        try (MessengerMetrics silent = MessengerMetrics.open("127.0.0.1", -1)) {
            silent.add(MessengerMetric.PAGES_SENT, 1);
            assertThat(silent.port()).isEqualTo(-1);
        }
    }

    @Test
    void shouldFreeThePortWhenClosed() {
        int port = metrics.port();
        metrics.close();
        try (MessengerMetrics next = MessengerMetrics.open("127.0.0.1", port)) {
            assertThat(next.port()).isEqualTo(port);
        }
    }

    private Map<?, ?> section(String name) throws Exception {
        return (Map<?, ?>) JSON.std.mapFrom(metrics.snapshotJson()).get(name);
    }

    private HttpResponse<String> get(String path) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + metrics.port() + path))
                .timeout(Duration.ofSeconds(60))
                .build();
        return client.send(request, HttpResponse.BodyHandlers.ofString());
    }
}
