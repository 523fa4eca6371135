package io.kvmessenger.connector.metrics;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerMetric.Label;
import io.kvmessenger.messenger.port.PeerTally;
import io.kvmessenger.transfer.Peer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The metrics labelled by peer: a bounded number of peers have series of their own, the others share one.
 *
 * <p>A peer that is gone keeps its series until another needs the room; then its counts are added to the shared series,
 * so that the total never decreases. The messenger's thread opens, counts and ends; any thread reads.
 */
final class PeerSeries {
    /** The label of the peers without series of their own. */
    static final String OTHER = "other";

    private static final List<MessengerMetric> METRICS = Arrays.stream(MessengerMetric.values())
            .filter(metric -> metric.label() == Label.PEER)
            .toList();

    /** Receives one metric of one peer. */
    interface Reader {
        void accept(String engineId, double value);
    }

    private static final class Series {
        /** The map never changes after construction, only its values do. */
        final Map<MessengerMetric, AtomicLong> sums = new EnumMap<>(MessengerMetric.class);
        /** The handles of its open sessions in which this engine writes to it. */
        final List<Peer> writtenTo = new ArrayList<>();

        int sessionCount;
        /** Counts go here after the series has been given up. */
        Series heir = this;

        Series() {
            METRICS.forEach(metric -> sums.put(metric, new AtomicLong()));
        }

        void add(MessengerMetric metric, long count) {
            sums.get(metric).addAndGet(count);
        }

        void set(MessengerMetric metric, long value) {
            sums.get(metric).set(value);
        }

        double of(MessengerMetric metric) {
            return switch (metric) {
                case PEER_QUEUED_BYTES -> queuedBytes();
                case PEER_SEND_RATE -> bytesPerSecond();
                case PEER_QUEUE_SECONDS -> queuedBytes() == 0 ? 0 : knownSeconds();
                default -> sums.get(metric).get();
            };
        }

        private long queuedBytes() {
            return writtenTo.stream().mapToLong(Peer::queuedBytes).sum();
        }

        private double bytesPerSecond() {
            return writtenTo.stream().mapToDouble(Peer::bytesPerSecond).sum();
        }

        private double knownSeconds() {
            double rate = bytesPerSecond();
            return rate == 0 ? Double.NaN : queuedBytes() / rate;
        }
    }

    private final class SessionTally implements PeerTally {
        private final Series series;
        private final Optional<Peer> writtenTo;
        private boolean ended;

        SessionTally(Series series, Optional<Peer> writtenTo) {
            this.series = series;
            this.writtenTo = writtenTo;
        }

        @Override
        public void add(MessengerMetric metric, long count) {
            series.heir.add(metric, count);
        }

        @Override
        public void set(MessengerMetric metric, long value) {
            series.heir.set(metric, value);
        }

        @Override
        public void end() {
            if (!ended) {
                ended = true;
                close(series, writtenTo);
            }
        }
    }

    private final int countMax;
    /** By engine id, in order of first use. */
    private final Map<String, Series> own = new LinkedHashMap<>();

    private final Series others = new Series();

    /** @param countMax number of peers with series of their own; 0 = no metric is labelled by peer */
    PeerSeries(int countMax) {
        this.countMax = countMax;
    }

    synchronized PeerTally open(String engineId, Optional<Peer> writtenTo) {
        if (countMax == 0) {
            return PeerTally.NONE;
        }
        Series series = seriesOf(engineId);
        series.sessionCount++;
        writtenTo.ifPresent(series.writtenTo::add);
        return new SessionTally(series, writtenTo);
    }

    private synchronized void close(Series series, Optional<Peer> writtenTo) {
        series.sessionCount--;
        writtenTo.ifPresent(series.writtenTo::remove);
    }

    private Series seriesOf(String engineId) {
        Series known = own.get(engineId);
        if (known != null) {
            return known;
        }
        if (engineId.equals(OTHER) || (own.size() >= countMax && !makeRoom())) {
            return others;
        }
        Series made = new Series();
        own.put(engineId, made);
        return made;
    }

    /** Merges the oldest series of a peer that is gone into the shared one; false when all peers are connected. */
    private boolean makeRoom() {
        for (Iterator<Series> all = own.values().iterator(); all.hasNext(); ) {
            Series gone = all.next();
            if (gone.sessionCount == 0) {
                gone.sums.forEach((metric, sum) -> {
                    if (metric.kind() == MessengerMetric.Kind.COUNTER) {
                        others.add(metric, sum.get());
                    }
                });
                gone.heir = others;
                all.remove();
                return true;
            }
        }
        return false;
    }

    /** Any thread: passes on the metric of each peer seen so far, and of the others. */
    synchronized void read(MessengerMetric metric, Reader reader) {
        if (countMax > 0) {
            own.forEach((engineId, series) -> reader.accept(engineId, series.of(metric)));
            reader.accept(OTHER, others.of(metric));
        }
    }
}
