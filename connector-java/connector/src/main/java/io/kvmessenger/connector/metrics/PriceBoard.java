package io.kvmessenger.connector.metrics;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.SourcePrice;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.SequencedMap;
import java.util.function.LongSupplier;

/**
 * The prices that the engine has reported last. The messenger's thread writes; any thread reads.
 *
 * <p>It computes nothing but the price of a number of tokens: what a transfer takes is fitted where it is decided by.
 */
final class PriceBoard {
    /** The source that stands for computing the tokens. */
    static final String OWN = "own";

    /** How many tokens the gauge is about. */
    static final int GAUGE_TOKENS = 1_000;

    private static final double NS_PER_SECOND = 1e9;

    /**
     * What a number of tokens from an engine take, in seconds.
     *
     * @param known whether that engine has shown it; otherwise it is a guess by other engines
     * @param dead whether the engine was lost a moment ago, so that it is not chosen
     */
    record Answer(boolean known, boolean dead, double total, double open, double answer, double queue, double move) {}

    private record Report(EngineCommand.Prices prices, long atNs) {}

    private final LongSupplier clock;
    private final int gaugesMax;
    private volatile Report last;

    /** @param gaugesMax number of engines with gauges of their own: those used last */
    PriceBoard(LongSupplier clock, int gaugesMax) {
        this.clock = clock;
        this.gaugesMax = gaugesMax;
        this.last = new Report(new EngineCommand.Prices(List.of(), OptionalDouble.empty()), clock.getAsLong());
    }

    /** Of several prices of one source the last counts: two gauges of one name would spoil the whole page. */
    void put(EngineCommand.Prices prices) {
        SequencedMap<String, SourcePrice> bySource = new LinkedHashMap<>();
        prices.sources().forEach(price -> bySource.putLast(price.source(), price));
        last = new Report(
                new EngineCommand.Prices(List.copyOf(bySource.values()), prices.computeNsPerToken()),
                clock.getAsLong());
    }

    /** Empty where the engine has never been asked, or nothing has ever come from any engine. */
    Optional<Answer> of(String source, int tokens) {
        Report report = last;
        long ageNs = clock.getAsLong() - report.atNs;
        return report.prices.sources().stream()
                .filter(price -> price.source().equals(source))
                .findFirst()
                .map(price -> answer(price, tokens, ageNs));
    }

    /** In which this engine computes the tokens; empty before it has computed any. */
    OptionalDouble computeSeconds(int tokens) {
        OptionalDouble perToken = last.prices.computeNsPerToken();
        return perToken.isPresent()
                ? OptionalDouble.of(perToken.getAsDouble() * tokens / NS_PER_SECOND)
                : OptionalDouble.empty();
    }

    /**
     * Passes on the price of 1,000 tokens from the engines used last, and of computing them; but not of engines that are
     * dead, or from which nothing has come for so long that the price is a guess.
     */
    void read(PeerSeries.Reader reader) {
        if (gaugesMax == 0) {
            return;
        }
        computeSeconds(GAUGE_TOKENS).ifPresent(seconds -> reader.accept(OWN, seconds));
        Report report = last;
        long ageNs = clock.getAsLong() - report.atNs;
        List<SourcePrice> sources = report.prices.sources().stream()
                .filter(price -> price.isKnown(ageNs) && !price.isDead(ageNs))
                .filter(price -> !price.source().equals(OWN))
                .toList();
        for (SourcePrice price : sources.subList(Math.max(0, sources.size() - gaugesMax), sources.size())) {
            reader.accept(price.source(), answer(price, GAUGE_TOKENS, ageNs).total());
        }
    }

    private static Answer answer(SourcePrice price, int tokens, long ageNs) {
        return new Answer(
                price.knows(tokens, ageNs),
                price.isDead(ageNs),
                price.totalNs(tokens, ageNs) / NS_PER_SECOND,
                price.openNs() / NS_PER_SECOND,
                price.answerNs() / NS_PER_SECOND,
                price.queueNs(ageNs) / NS_PER_SECOND,
                price.moveNs(tokens) / NS_PER_SECOND);
    }
}
