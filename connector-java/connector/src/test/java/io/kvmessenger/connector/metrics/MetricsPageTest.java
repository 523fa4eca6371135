package io.kvmessenger.connector.metrics;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerMetric.Label;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import org.junit.jupiter.api.Test;

/** Makes docs/metrics.md from the enum; {@code -Dkvmessenger.rewriteDocs=true} writes it anew. */
class MetricsPageTest {
    private static final Path PAGE = Path.of("../../docs/metrics.md");

    @Test
    void shouldKeepTheMetricsPageLikeTheEnum() throws IOException {
        if (Boolean.getBoolean("kvmessenger.rewriteDocs")) {
            Files.writeString(PAGE, page());
        }
        assertThat(PAGE)
                .as("docs/metrics.md is stale: run mvn test -pl connector-java/connector -am -Dtest=MetricsPageTest"
                        + " -Dsurefire.failIfNoSpecifiedTests=false -Dkvmessenger.rewriteDocs=true")
                .exists()
                .content()
                .isEqualTo(page());
    }

    private static String page() {
        StringBuilder page = new StringBuilder(head());
        for (MessengerMetric metric : MessengerMetric.values()) {
            page.append("| `%s` | %s | %s | %s | %s |%n"
                    .formatted(
                            metric.metricName(),
                            metric.kind().name().toLowerCase(Locale.ROOT),
                            unit(metric),
                            metric.label() == Label.NONE
                                    ? "–"
                                    : "`" + metric.label().labelName() + "`",
                            metric.sentence()));
        }
        page.append("""

                ## Peers

                The label `peer` is the engine id of a peer that has completed its handshake. [`metrics_peers`](options.md) sets how many
                peers have series of their own; the rest are `other`. A peer that is gone keeps its
                series until another peer needs it; then its counts are added to `other`.

                The label `source` is the address of an engine that this one has asked for its prefix cache, `own` for the engine itself. As
                many of those used last as `metrics_peers` says have series.

                ## Reasons

                These counters have the label `reason`; each reason is a series from the start.

                | of | reason | what it means |
                | --- | --- | --- |
                """);
        for (MessengerMetric metric : MessengerMetric.values()) {
            metric.reasons()
                    .forEach(reason -> page.append("| `%s` | `%s` | %s |%n"
                            .formatted(metric.metricName(), reason.label(), reason.sentence())));
        }
        return page.toString();
    }

    private static String head() {
        return """
                # Metrics

                Made from `MessengerMetric`; edit that, not this page. A messenger serves these pages at `metrics_host:metrics_port`:

                | page | answers |
                | --- | --- |
                | `/metrics` | the metrics below, in the Prometheus format |
                | `/health` | 200, or 503 and the reason |
                | `/ready` | the same, and 503 also after [`drain`](operations.md#end-an-engine) |
                | `/price` | what tokens take from another engine, and computed here ([how](monitoring.md#the-price-of-a-pull)) |
                | `/`, `/state` | what it holds and waits for, to requests with the key ([how](troubleshooting.md#a-request-waits)) |

                On the page a counter ends with `_total`, a histogram with `_bucket`, `_sum` and `_count`. Totals
                count from the moment at which the messenger was opened. `kv_messenger_build_info` is 1; its labels name the version, build,
                protocol and Java runtime.

                vLLM's own page has the counters with their reasons, the gauges and the histograms as `vllm:kv_messenger_…`; SGLang's, with
                `--enable-metrics`, as `sglang:kv_messenger_…`. Only the messenger's page has labels other than `reason`, and the JVM's metrics.

                Histograms have %d buckets from %s s on, each twice as wide as the one before.

                | name | kind | unit | label | what it counts |
                | --- | --- | --- | --- | --- |
                """.formatted(
                        MessengerMetrics.BUCKET_COUNT,
                        BigDecimal.valueOf(MessengerMetrics.FIRST_BUCKET_SECONDS)
                                .stripTrailingZeros()
                                .toPlainString());
    }

    private static String unit(MessengerMetric metric) {
        String name = metric.metricName();
        return name.endsWith("_bytes") ? "bytes" : name.endsWith("_seconds") ? "seconds" : "–";
    }
}
