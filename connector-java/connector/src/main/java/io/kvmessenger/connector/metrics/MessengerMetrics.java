package io.kvmessenger.connector.metrics;

import static java.util.Map.entry;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferCounters;
import io.prometheus.metrics.core.metrics.Counter;
import io.prometheus.metrics.core.metrics.CounterWithCallback;
import io.prometheus.metrics.core.metrics.Gauge;
import io.prometheus.metrics.core.metrics.GaugeWithCallback;
import io.prometheus.metrics.core.metrics.Histogram;
import io.prometheus.metrics.model.registry.PrometheusRegistry;
import io.prometheus.metrics.model.snapshots.HistogramSnapshot.HistogramDataPointSnapshot;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.function.IntConsumer;
import java.util.function.Supplier;

/**
 * The figures of one messenger: counted by its thread, shown on {@code /metrics} and in the answer to {@code stats}.
 *
 * <p>Safe from any thread; counting takes no lock and never waits. Transport counters are not kept here but
 * read from the transports on each scrape.
 */
public final class MessengerMetrics implements Tally, AutoCloseable {
    /** From a millisecond to half a minute, doubling. */
    private static final double FIRST_BUCKET_SECONDS = 0.001;

    private static final int BUCKET_COUNT = 16;

    private static final Map<MessengerMetric, TransferCounter> OF_TRANSPORTS = new EnumMap<>(Map.ofEntries(
            entry(MessengerMetric.TRANSPORT_BYTES_SENT, TransferCounter.BYTES_SENT),
            entry(MessengerMetric.TRANSPORT_BYTES_RECEIVED, TransferCounter.BYTES_RECEIVED),
            entry(MessengerMetric.TRANSPORT_WRITES_REFUSED, TransferCounter.WRITES_REFUSED),
            entry(MessengerMetric.TRANSPORT_WRITES_SENT, TransferCounter.WRITES_SENT),
            entry(MessengerMetric.TRANSPORT_WRITES_SAVED, TransferCounter.WRITES_SAVED),
            entry(MessengerMetric.TRANSPORT_WRITES_REPEATED, TransferCounter.WRITES_REPEATED),
            entry(MessengerMetric.TRANSPORT_BACK_PRESSURED, TransferCounter.BACK_PRESSURED),
            entry(MessengerMetric.STRAYS, TransferCounter.STRAYS),
            entry(MessengerMetric.PATHS_OPENED, TransferCounter.PATHS_OPENED),
            entry(MessengerMetric.PATHS_LOST, TransferCounter.PATHS_LOST),
            entry(MessengerMetric.PATHS_REJECTED, TransferCounter.PATHS_REJECTED),
            entry(MessengerMetric.REGIONS_OPEN, TransferCounter.REGIONS_OPEN)));

    private final PrometheusRegistry registry = new PrometheusRegistry();
    private final Map<MessengerMetric, Counter> counters = new EnumMap<>(MessengerMetric.class);
    private final Map<MessengerMetric, Gauge> gauges = new EnumMap<>(MessengerMetric.class);
    private final Map<MessengerMetric, Histogram> histograms = new EnumMap<>(MessengerMetric.class);
    private final Optional<MetricsServer> server;
    private volatile Supplier<TransferCounters> transports = () -> TransferCounters.NONE;
    private volatile Supplier<Optional<String>> healthProblem = Optional::empty;

    private MessengerMetrics(String host, int port, IntConsumer onSocket) {
        for (MessengerMetric metric : MessengerMetric.values()) {
            if (OF_TRANSPORTS.containsKey(metric)) {
                registerOfTransports(metric);
            } else {
                register(metric);
            }
        }
        server = port < 0
                ? Optional.empty()
                : Optional.of(MetricsServer.open(host, port, registry, () -> healthProblem.get(), onSocket));
    }

    /**
     * @param port 0 takes any free one, below 0 there is no HTTP
     * @param onSocket hears of each local port on which a socket has been opened
     * @throws io.kvmessenger.connector.boot.RefusedException if the address cannot be listened on
     */
    public static MessengerMetrics open(String host, int port, IntConsumer onSocket) {
        return new MessengerMetrics(host, port, onSocket);
    }

    /** From now on the figures of the transports are those that {@code transports} gives. */
    public void follow(Supplier<TransferCounters> transports) {
        this.transports = transports;
    }

    /** From now on {@code /health} answers 503 with the sentence that {@code healthProblem} gives, if it gives one. */
    public void watch(Supplier<Optional<String>> healthProblem) {
        this.healthProblem = healthProblem;
    }

    /** Where the pages are, -1 when nowhere. */
    public int port() {
        return server.map(MetricsServer::port).orElse(-1);
    }

    @Override
    public void add(MessengerMetric metric, long count) {
        counters.get(metric).inc(count);
    }

    @Override
    public void set(MessengerMetric metric, long value) {
        gauges.get(metric).set((double) value);
    }

    @Override
    public void observe(MessengerMetric metric, double value) {
        histograms.get(metric).observe(value);
    }

    /** The answer to {@code stats}: a histogram appears as the two counters {@code …_count} and {@code …_sum}. */
    public byte[] snapshotJson() {
        TransferCounters ofTransports = transports.get();
        Map<String, Object> totals = new LinkedHashMap<>();
        Map<String, Object> values = new LinkedHashMap<>();
        for (MessengerMetric metric : MessengerMetric.values()) {
            String name = metric.metricName();
            TransferCounter read = OF_TRANSPORTS.get(metric);
            switch (metric.kind()) {
                case COUNTER ->
                    totals.put(name, read == null ? counters.get(metric).getLongValue() : ofTransports.of(read));
                case GAUGE ->
                    values.put(name, read == null ? (long) gauges.get(metric).get() : ofTransports.of(read));
                case HISTOGRAM -> {
                    HistogramDataPointSnapshot observed =
                            histograms.get(metric).collect().getDataPoints().getFirst();
                    totals.put(name + "_count", observed.getCount());
                    totals.put(name + "_sum", observed.getSum());
                }
            }
        }
        return encode(Map.of("counters", totals, "gauges", values));
    }

    @Override
    public void close() {
        server.ifPresent(MetricsServer::close);
    }

    private void register(MessengerMetric metric) {
        String name = metric.metricName();
        switch (metric.kind()) {
            case COUNTER ->
                counters.put(
                        metric,
                        Counter.builder().name(name).help(metric.sentence()).register(registry));
            case GAUGE ->
                gauges.put(
                        metric,
                        Gauge.builder().name(name).help(metric.sentence()).register(registry));
            case HISTOGRAM ->
                histograms.put(
                        metric,
                        Histogram.builder()
                                .name(name)
                                .help(metric.sentence())
                                .classicOnly()
                                .classicExponentialUpperBounds(FIRST_BUCKET_SECONDS, 2, BUCKET_COUNT)
                                .register(registry));
        }
    }

    private void registerOfTransports(MessengerMetric metric) {
        TransferCounter read = OF_TRANSPORTS.get(metric);
        String name = metric.metricName();
        switch (metric.kind()) {
            case COUNTER ->
                CounterWithCallback.builder()
                        .name(name)
                        .help(metric.sentence())
                        .callback(to -> to.call((double) transports.get().of(read)))
                        .register(registry);
            case GAUGE ->
                GaugeWithCallback.builder()
                        .name(name)
                        .help(metric.sentence())
                        .callback(to -> to.call((double) transports.get().of(read)))
                        .register(registry);
            case HISTOGRAM -> throw new AssertionError(metric + " is a histogram, which transports do not keep");
        }
    }

    private static byte[] encode(Map<String, Object> json) {
        try {
            return JSON.std.asBytes(json);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
