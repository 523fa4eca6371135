package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Collects the measured rounds and summarises them: medians over the clean ones, in which other programs used few of
 * the cores; over all rounds if too few were clean. For one thread.
 */
final class Report {
    /** Largest share of the cores that other programs may have used in a clean round. */
    static final double OTHERS_SHARE_MAX = 0.1;
    /** With fewer clean rounds than this all rounds count, and the report says so. */
    static final int CLEAN_ROUNDS_MIN = 3;

    /** A round of this project and the yardstick's next to it, if there is one. */
    private record Pair(Initiator.Round ours, Yardstick.Round yardstick) {
        boolean isClean() {
            return ours.othersShare() <= OTHERS_SHARE_MAX
                    && (yardstick == null || yardstick.othersShare() <= OTHERS_SHARE_MAX);
        }
    }

    private final KvPerfOptions options;
    private final List<Pair> pairs = new ArrayList<>();

    Report(KvPerfOptions options) {
        this.options = options;
    }

    /** Adds two rounds that were run one after the other. */
    void add(Initiator.Round round, Yardstick.Round yardstickRound) {
        pairs.add(new Pair(round, yardstickRound));
    }

    void add(Initiator.Round round) {
        pairs.add(new Pair(round, null));
    }

    int roundCount() {
        return pairs.size();
    }

    int cleanRoundCount() {
        return (int) pairs.stream().filter(Pair::isClean).count();
    }

    private List<Pair> counted() {
        return cleanRoundCount() < CLEAN_ROUNDS_MIN
                ? pairs
                : pairs.stream().filter(Pair::isClean).toList();
    }

    /** Directions in which each byte travels: two for op pingpong. */
    private int waysPerRound() {
        return options.op() == KvPerfOptions.Op.PINGPONG ? 2 : 1;
    }

    private double gbPerSecond(long durationNs) {
        return (double) waysPerRound() * options.roundBytes() / durationNs;
    }

    /** The keys that every run has, then those that only some have. */
    Map<String, Object> figures() {
        List<Pair> counted = counted();
        long[] durations = counted.stream()
                .mapToLong(pair -> pair.ours().durationNs())
                .sorted()
                .toArray();
        long[] latencies = counted.stream()
                .flatMapToLong(pair -> Arrays.stream(pair.ours().latenciesNs()))
                .sorted()
                .toArray();
        long cpuNs = counted.stream().mapToLong(pair -> pair.ours().cpuNs()).sum();
        long median = Initiator.percentile(durations, 0.5);
        Map<String, Object> figures = new LinkedHashMap<>();
        figures.put("transport", options.transport());
        figures.put("op", options.op().word);
        figures.put("pageBytes", options.pageBytes());
        figures.put("pageCount", options.pageCount());
        figures.put("inFlight", options.inFlight());
        figures.put("gbPerSecond", rounded(gbPerSecond(median)));
        figures.put("opsPerSecond", Math.round(waysPerRound() * options.pageCount() * 1e9 / median));
        figures.put("p50Us", rounded(Initiator.percentile(latencies, 0.5) / 1e3));
        figures.put("p99Us", rounded(Initiator.percentile(latencies, 0.99) / 1e3));
        figures.put(
                "cpuSecondsPerGb", rounded((double) cpuNs / (waysPerRound() * options.roundBytes() * counted.size())));
        figures.put("checked", options.check());
        if (options.op() == KvPerfOptions.Op.PAGED) {
            figures.put("batchPages", options.batchPages());
        }
        if (options.transport().equals(TransferOptions.TCP)) {
            figures.put("streams", options.streams());
        }
        if (!options.provider().isEmpty()) {
            figures.put("provider", options.provider());
        }
        figures.put("threading", options.threading() == ThreadingMode.CALLER ? "caller" : "own");
        if (options.peers() > 1 || options.workers() > 1) {
            figures.put("peers", options.peers());
            figures.put("workers", options.workers());
        }
        figures.put("poolBytes", options.poolBytes());
        figures.put("gbPerSecondMin", rounded(gbPerSecond(durations[durations.length - 1])));
        figures.put("gbPerSecondMax", rounded(gbPerSecond(durations[0])));
        if (options.yardstick()) {
            addYardstick(figures, counted);
        }
        figures.put("rounds", pairs.size());
        figures.put("cleanRounds", cleanRoundCount());
        return figures;
    }

    private void addYardstick(Map<String, Object> figures, List<Pair> counted) {
        long[] durations = counted.stream()
                .mapToLong(pair -> pair.yardstick().durationNs())
                .sorted()
                .toArray();
        long[] permille = counted.stream()
                .mapToLong(pair -> Math.round(
                        1000.0 * pair.yardstick().durationNs() / pair.ours().durationNs()))
                .sorted()
                .toArray();
        long cpuNs =
                counted.stream().mapToLong(pair -> pair.yardstick().cpuNs()).sum();
        figures.put("yardstickGbPerSecond", rounded(gbPerSecond(Initiator.percentile(durations, 0.5))));
        figures.put("yardstickCpuSecondsPerGb", rounded((double) cpuNs / (options.roundBytes() * counted.size())));
        figures.put("ratio", Initiator.percentile(permille, 0.5) / 1000.0);
    }

    private static double rounded(double value) {
        return Math.round(value * 1000) / 1000.0;
    }

    static String json(Map<String, Object> figures) {
        return figures.entrySet().stream()
                .map(figure -> "\"" + figure.getKey() + "\": " + jsonValue(figure.getValue()))
                .collect(Collectors.joining(", ", "{", "}"));
    }

    /** All strings here are values of {@link KvPerfOptions}, which need no escaping. */
    private static String jsonValue(Object value) {
        return value instanceof String text ? "\"" + text + "\"" : value.toString();
    }

    String sentence() {
        Map<String, Object> figures = figures();
        String yardstick = options.yardstick()
                ? "; yardstick " + figures.get("yardstickGbPerSecond") + " GB/s, ratio " + figures.get("ratio")
                : "";
        return String.format(
                Locale.ROOT,
                "%s %s, %d pages of %d bytes, %d in flight: %s GB/s, %s pages/s, p50 %s us, p99 %s us, %s CPU s/GB, %s%s"
                        + " (%d of %d rounds clean)",
                options.transport(),
                options.op().word,
                options.pageCount(),
                options.pageBytes(),
                options.inFlight(),
                figures.get("gbPerSecond"),
                figures.get("opsPerSecond"),
                figures.get("p50Us"),
                figures.get("p99Us"),
                figures.get("cpuSecondsPerGb"),
                options.check() ? "every byte checked" : "bytes not checked",
                yardstick,
                cleanRoundCount(),
                roundCount());
    }
}
