package io.kvmessenger.connector.metrics;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.PeerTally;
import io.kvmessenger.transfer.Peer;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class PeerSeriesTest {
    private record Loaded(long queuedBytes, double bytesPerSecond) implements Peer {
        @Override
        public int id() {
            return 1;
        }

        @Override
        public String name() {
            return "loaded";
        }

        @Override
        public String transport() {
            return "tcp";
        }
    }

    private final PeerSeries peers = new PeerSeries(2);

    private PeerTally open(String engineId) {
        return peers.open(engineId, Optional.empty());
    }

    private Map<String, Double> read(MessengerMetric metric) {
        Map<String, Double> values = new LinkedHashMap<>();
        peers.read(metric, values::put);
        return values;
    }

    private Map<String, Double> sent() {
        return read(MessengerMetric.PEER_BYTES_SENT);
    }

    @Test
    void shouldCountTheSessionsOfOnePeerTogether() {
        PeerTally first = open("d");
        PeerTally second = open("d");
        first.add(MessengerMetric.PEER_BYTES_SENT, 3);
        second.add(MessengerMetric.PEER_BYTES_SENT, 4);
        assertThat(sent()).isEqualTo(Map.of("d", 7.0, "other", 0.0));
    }

    @Test
    void shouldCountPeersBeyondTheBoundTogether() {
        open("a").add(MessengerMetric.PEER_BYTES_SENT, 1);
        open("b").add(MessengerMetric.PEER_BYTES_SENT, 2);
        open("c").add(MessengerMetric.PEER_BYTES_SENT, 4);
        open("d").add(MessengerMetric.PEER_BYTES_SENT, 8);
        assertThat(sent()).isEqualTo(Map.of("a", 1.0, "b", 2.0, "other", 12.0));
    }

    @Test
    void shouldGiveTheRoomOfAPeerThatIsGoneToANewOneAndLoseNoCount() {
        PeerTally gone = open("a");
        gone.add(MessengerMetric.PEER_BYTES_SENT, 1);
        open("b").add(MessengerMetric.PEER_BYTES_SENT, 2);
        gone.end();
        assertThat(sent()).as("its room is not needed yet").containsEntry("a", 1.0);
        open("c").add(MessengerMetric.PEER_BYTES_SENT, 4);
        gone.add(MessengerMetric.PEER_BYTES_SENT, 8); // ends late
        gone.end();
        assertThat(sent()).isEqualTo(Map.of("b", 2.0, "c", 4.0, "other", 9.0));
    }

    @Test
    void shouldNotAddTheGaugeOfAPeerThatIsGoneToTheOthers() {
        PeerTally gone = open("a");
        gone.set(MessengerMetric.PEER_LAST_TOKEN_DIFFERENCE, 7);
        gone.set(MessengerMetric.PEER_LAST_TOKEN_DIFFERENCE, 5);
        open("b");
        assertThat(read(MessengerMetric.PEER_LAST_TOKEN_DIFFERENCE))
                .isEqualTo(Map.of("a", 5.0, "b", 0.0, "other", 0.0));
        gone.end();
        open("c");
        assertThat(read(MessengerMetric.PEER_LAST_TOKEN_DIFFERENCE))
                .isEqualTo(Map.of("b", 0.0, "c", 0.0, "other", 0.0));
    }

    @Test
    void shouldTakeAPeerOfThatNameForOneOfTheOthers() {
        open("other").add(MessengerMetric.PEER_BYTES_SENT, 5);
        assertThat(sent()).isEqualTo(Map.of("other", 5.0));
    }

    @Test
    void shouldSayHowLongTheQueueToAPeerTakes() {
        PeerTally session = peers.open("d", Optional.of(new Loaded(3_000, 1_000)));
        peers.open("d", Optional.of(new Loaded(1_000, 1_000)));
        peers.open("idle", Optional.of(new Loaded(0, 0)));
        assertThat(read(MessengerMetric.PEER_QUEUED_BYTES)).containsEntry("d", 4_000.0);
        assertThat(read(MessengerMetric.PEER_SEND_RATE)).containsEntry("d", 2_000.0);
        assertThat(read(MessengerMetric.PEER_QUEUE_SECONDS))
                .containsEntry("d", 2.0)
                .containsEntry("idle", 0.0);
        session.end();
        assertThat(read(MessengerMetric.PEER_QUEUED_BYTES)).containsEntry("d", 1_000.0);
    }

    @Test
    void shouldNotGuessHowLongAQueueTakesAtAnUnknownRate() {
        peers.open("new", Optional.of(new Loaded(1, 0)));
        assertThat(read(MessengerMetric.PEER_QUEUE_SECONDS).get("new")).isNaN();
    }

    @Test
    void shouldDistinguishNothingWhenAskedForNoPeers() {
        PeerSeries none = new PeerSeries(0);
        assertThat(none.open("a", Optional.empty())).isSameAs(PeerTally.NONE);
        none.read(MessengerMetric.PEER_BYTES_SENT, (engineId, value) -> {
            throw new AssertionError(engineId);
        });
    }
}
