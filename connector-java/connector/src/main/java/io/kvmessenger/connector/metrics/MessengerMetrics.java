package io.kvmessenger.connector.metrics;

import static java.util.Map.entry;

import io.kvmessenger.connector.boot.BuildId;
import io.kvmessenger.connector.boot.Json;
import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerMetric.Label;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.PeerTally;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferCounters;
import io.prometheus.metrics.core.metrics.Counter;
import io.prometheus.metrics.core.metrics.CounterWithCallback;
import io.prometheus.metrics.core.metrics.Gauge;
import io.prometheus.metrics.core.metrics.GaugeWithCallback;
import io.prometheus.metrics.core.metrics.Histogram;
import io.prometheus.metrics.core.metrics.Info;
import io.prometheus.metrics.model.registry.PrometheusRegistry;
import io.prometheus.metrics.model.snapshots.ClassicHistogramBucket;
import io.prometheus.metrics.model.snapshots.HistogramSnapshot.HistogramDataPointSnapshot;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.IntConsumer;
import java.util.function.Supplier;

/**
 * The metrics of one messenger: counted by its thread, exposed on {@code /metrics} and in the answer to {@code stats}.
 *
 * <p>Safe from any thread; counting takes no lock and never waits. Transport counters and the JVM's metrics are not
 * kept here but read on each scrape.
 */
public final class MessengerMetrics implements Tally, AutoCloseable {
    /** From 50 microseconds to seven minutes, doubling: from a small write over shm to beyond any default limit. */
    static final double FIRST_BUCKET_SECONDS = 0.000_05;

    static final int BUCKET_COUNT = 24;

    private static final Map<MessengerMetric, TransferCounter> OF_TRANSPORTS = new EnumMap<>(Map.ofEntries(
            entry(MessengerMetric.TRANSPORT_BYTES_SENT, TransferCounter.BYTES_SENT),
            entry(MessengerMetric.TRANSPORT_WRITES_REFUSED, TransferCounter.WRITES_REFUSED),
            entry(MessengerMetric.TRANSPORT_WRITES_SENT, TransferCounter.WRITES_SENT),
            entry(MessengerMetric.TRANSPORT_WRITES_SAVED, TransferCounter.WRITES_SAVED),
            entry(MessengerMetric.TRANSPORT_RUNS_BY_KERNEL, TransferCounter.RUNS_BY_KERNEL),
            entry(MessengerMetric.TRANSPORT_WRITES_REPEATED, TransferCounter.WRITES_REPEATED),
            entry(MessengerMetric.TRANSPORT_BACK_PRESSURED, TransferCounter.BACK_PRESSURED),
            entry(MessengerMetric.STRAYS, TransferCounter.STRAYS),
            entry(MessengerMetric.PATHS_OPENED, TransferCounter.PATHS_OPENED),
            entry(MessengerMetric.PATHS_LOST, TransferCounter.PATHS_LOST),
            entry(MessengerMetric.PATHS_REJECTED, TransferCounter.PATHS_REJECTED),
            entry(MessengerMetric.REGIONS_OPEN, TransferCounter.REGIONS_OPEN)));

    private final PrometheusRegistry registry = new PrometheusRegistry();
    private final PeerSeries peers;
    private final PriceBoard prices;
    private final Map<MessengerMetric, Counter> counters = new EnumMap<>(MessengerMetric.class);
    private final Map<MessengerMetric, Gauge> gauges = new EnumMap<>(MessengerMetric.class);
    private final Map<MessengerMetric, Histogram> histograms = new EnumMap<>(MessengerMetric.class);
    private final Optional<MetricsServer> server;
    private volatile Supplier<TransferCounters> transports = () -> TransferCounters.NONE;
    private volatile Supplier<Optional<String>> healthProblem = Optional::empty;
    private volatile String notReady = "";
    private volatile Consumer<CompletableFuture<MessengerState>> describe = asked -> asked.cancel(false);

    private MessengerMetrics(String host, int port, int peersMax, String pageKey, IntConsumer onSocket) {
        peers = new PeerSeries(peersMax);
        prices = new PriceBoard(System::nanoTime, peersMax);
        for (MessengerMetric metric : MessengerMetric.values()) {
            registerSource(metric);
        }
        registerBuild();
        server = port < 0
                ? Optional.empty()
                : Optional.of(MetricsServer.open(
                        host,
                        port,
                        new Pages(
                                registry,
                                () -> healthProblem.get(),
                                () -> notReady,
                                pageKey,
                                new AtomicBoolean(),
                                prices,
                                asked -> describe.accept(asked)),
                        onSocket));
    }

    /**
     * @param port 0 takes any free one, below 0 there is no HTTP
     * @param peersMax number of peers with series of their own; 0 = no metric is labelled by peer
     * @param pageKey opens the pages that are not for every reader of the metrics; empty = none can see them
     * @param onSocket receives each local port on which a socket has been opened
     * @throws io.kvmessenger.connector.boot.RefusedException if the address cannot be listened on
     */
    public static MessengerMetrics open(String host, int port, int peersMax, String pageKey, IntConsumer onSocket) {
        return new MessengerMetrics(host, port, peersMax, pageKey, onSocket);
    }

    /** Sets the source of the transports' counters. */
    public void follow(Supplier<TransferCounters> transports) {
        this.transports = transports;
    }

    /** Makes {@code /health} answer 503 with the sentence from {@code healthProblem}, if there is one. */
    public void watch(Supplier<Optional<String>> healthProblem) {
        this.healthProblem = healthProblem;
    }

    /** Makes {@code /ready} answer 503 with this sentence; empty = it answers by health and by draining alone. */
    public void declareNotReady(String why) {
        this.notReady = why;
    }

    /** Makes {@code /} and {@code /state} show the state with which {@code describe} completes its argument. */
    public void show(Consumer<CompletableFuture<MessengerState>> describe) {
        this.describe = describe;
    }

    /** What an operator should know about the pages; mostly empty. */
    public List<String> notes() {
        return server.map(MetricsServer::notes).orElse(List.of());
    }

    /** Port of the pages, -1 if there are none. */
    public int port() {
        return server.map(MetricsServer::port).orElse(-1);
    }

    @Override
    public void add(MessengerMetric metric, long count) {
        counters.get(metric).inc(count);
    }

    @Override
    public void add(MessengerMetric metric, CountedReason reason) {
        counters.get(metric).labelValues(reason.label()).inc();
    }

    @Override
    public void set(MessengerMetric metric, long value) {
        gauges.get(metric).set((double) value);
    }

    @Override
    public void observe(MessengerMetric metric, double value) {
        histograms.get(metric).observe(value);
    }

    @Override
    public PeerTally ofPeer(String engineId, Optional<Peer> writtenTo) {
        return peers.open(engineId, writtenTo);
    }

    @Override
    public void show(EngineCommand.Prices reported) {
        prices.put(reported);
    }

    /**
     * The answer to {@code stats}: counters as their sums, together with their reasons, and histograms with the count
     * of each bucket. It omits the JVM's metrics and those labelled by peer or source.
     */
    public byte[] snapshotJson() {
        TransferCounters ofTransports = transports.get();
        Map<String, Object> totals = new LinkedHashMap<>();
        Map<String, Object> reasons = new LinkedHashMap<>();
        Map<String, Object> values = new LinkedHashMap<>();
        Map<String, Object> observed = new LinkedHashMap<>();
        for (MessengerMetric metric : MessengerMetric.values()) {
            if (RuntimeFigures.ALL.containsKey(metric)
                    || metric.label() == Label.PEER
                    || metric.label() == Label.SOURCE) {
                continue;
            }
            String name = metric.metricName();
            TransferCounter read = OF_TRANSPORTS.get(metric);
            switch (metric.kind()) {
                case COUNTER -> totals.put(name, read == null ? total(metric) : ofTransports.of(read));
                case GAUGE ->
                    values.put(name, read == null ? (long) gauges.get(metric).get() : ofTransports.of(read));
                case HISTOGRAM -> observed.put(name, buckets(histograms.get(metric)));
            }
            if (metric.label() == Label.REASON) {
                reasons.put(name, byReason(metric));
            }
        }
        return Json.bytes(Map.of("counters", totals, "reasons", reasons, "gauges", values, "histograms", observed));
    }

    /** Converts cumulative buckets to the count of each. */
    private static Map<String, Object> buckets(Histogram histogram) {
        HistogramDataPointSnapshot observed =
                histogram.collect().getDataPoints().getFirst();
        List<Long> counts = observed.getClassicBuckets().stream()
                .map(ClassicHistogramBucket::getCount)
                .toList();
        return Map.of("buckets", counts, "sum", observed.getSum());
    }

    private Map<String, Long> byReason(MessengerMetric metric) {
        Counter counter = counters.get(metric);
        Map<String, Long> counts = new LinkedHashMap<>();
        metric.reasons()
                .forEach(reason -> counts.put(
                        reason.label(), counter.labelValues(reason.label()).getLongValue()));
        return counts;
    }

    private long total(MessengerMetric metric) {
        Counter counter = counters.get(metric);
        return metric.reasons().isEmpty()
                ? counter.getLongValue()
                : metric.reasons().stream()
                        .mapToLong(reason -> counter.labelValues(reason.label()).getLongValue())
                        .sum();
    }

    @Override
    public void close() {
        server.ifPresent(MetricsServer::close);
    }

    private void registerSource(MessengerMetric metric) {
        TransferCounter read = OF_TRANSPORTS.get(metric);
        if (metric.label() == Label.PEER) {
            registerRead(metric, to -> peers.read(metric, (engineId, value) -> to.call(value, engineId)));
        } else if (metric == MessengerMetric.PRICE_SECONDS) {
            registerRead(metric, to -> prices.read((source, value) -> to.call(value, source)));
        } else if (metric.label() == Label.TRANSPORT) {
            registerRead(metric, to -> {
                TransferCounters now = transports.get();
                now.transports().forEach(transport -> to.call((double) now.of(transport, read), transport));
            });
        } else if (read != null) {
            registerRead(metric, to -> to.call((double) transports.get().of(read)));
        } else if (RuntimeFigures.ALL.containsKey(metric)) {
            registerRead(metric, to -> to.call(RuntimeFigures.ALL.get(metric).getAsDouble()));
        } else {
            register(metric);
        }
    }

    /** Receives a value that was read, with the value of the metric's label if it has one. */
    private interface Reading {
        void call(double value, String... label);
    }

    private void registerRead(MessengerMetric metric, Consumer<Reading> read) {
        String[] labels = metric.label() == Label.NONE
                ? new String[0]
                : new String[] {metric.label().labelName()};
        switch (metric.kind()) {
            case COUNTER ->
                CounterWithCallback.builder()
                        .name(metric.metricName())
                        .help(metric.sentence())
                        .labelNames(labels)
                        .callback(to -> read.accept(to::call))
                        .register(registry);
            case GAUGE ->
                GaugeWithCallback.builder()
                        .name(metric.metricName())
                        .help(metric.sentence())
                        .labelNames(labels)
                        .callback(to -> read.accept(to::call))
                        .register(registry);
            case HISTOGRAM -> throw new AssertionError(metric + " is a histogram, which only this class keeps");
        }
    }

    private void register(MessengerMetric metric) {
        String name = metric.metricName();
        switch (metric.kind()) {
            case COUNTER -> counters.put(metric, counter(metric));
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

    private Counter counter(MessengerMetric metric) {
        Counter.Builder builder = Counter.builder().name(metric.metricName()).help(metric.sentence());
        if (metric.reasons().isEmpty()) {
            return builder.register(registry);
        }
        Counter counter = builder.labelNames(metric.label().labelName()).register(registry);
        metric.reasons().forEach(reason -> counter.initLabelValues(reason.label()));
        return counter;
    }

    private void registerBuild() {
        Info.builder()
                .name("kv_messenger_build")
                .help("Which build this is, in its labels; always 1.")
                .labelNames("version", "build", "protocol", "java")
                .register(registry)
                .addLabelValues(
                        BuildId.version(),
                        BuildId.value(),
                        Integer.toString(ProtocolLimits.PROTOCOL_VERSION),
                        Runtime.version().toString());
    }
}
