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
 * The figures that are told apart by peer: a bounded number of peers has series of its own, the others share one.
 *
 * <p>A peer that is gone keeps its series until another needs the room; from then on what it counted is the others', so that a
 * sum over all never falls. The messenger's thread opens, counts and ends; any thread reads.
 */
final class PeerSeries {
    /** The label of the peers without series of their own. */
    static final String OTHER = "other";

    private static final List<MessengerMetric> METRICS = Arrays.stream(MessengerMetric.values())
            .filter(metric -> metric.label() == Label.PEER)
            .toList();

    /** Receives one figure of one peer. */
    interface Reader {
        void accept(String engineId, double value);
    }

    /** What is known of one label. */
    private static final class Series {
        /** Never changed once made: only what it holds is. */
        final Map<MessengerMetric, AtomicLong> sums = new EnumMap<>(MessengerMetric.class);
        /** Its open sessions that are written to. */
        final List<Peer> writtenTo = new ArrayList<>();

        int sessionCount;
        /** Where it counts since its room was taken. */
        Series heir = this;

        Series() {
            METRICS.forEach(metric -> sums.put(metric, new AtomicLong()));
        }

        void add(MessengerMetric metric, long count) {
            sums.get(metric).addAndGet(count);
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

    /** Of one session. */
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
        public void end() {
            if (!ended) {
                ended = true;
                close(series, writtenTo);
            }
        }
    }

    private final int countMax;
    /** By engine id, the longest known first. */
    private final Map<String, Series> own = new LinkedHashMap<>();

    private final Series others = new Series();

    /** @param countMax peers that have series of their own; 0 = nothing is told apart by peer */
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

    /** Gives the others what the longest known peer that is gone has counted; false when all are there. */
    private boolean makeRoom() {
        for (Iterator<Series> all = own.values().iterator(); all.hasNext(); ) {
            Series gone = all.next();
            if (gone.sessionCount == 0) {
                gone.sums.forEach((metric, sum) -> others.add(metric, sum.get()));
                gone.heir = others;
                all.remove();
                return true;
            }
        }
        return false;
    }

    /** Any thread: the figure of each peer that has been there, and of the others. */
    synchronized void read(MessengerMetric metric, Reader reader) {
        if (countMax > 0) {
            own.forEach((engineId, series) -> reader.accept(engineId, series.of(metric)));
            reader.accept(OTHER, others.of(metric));
        }
    }
}
