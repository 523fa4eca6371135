package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Many peers that dial one target at the same moment, as after its start: all are served, by their fastest transport. */
@Timeout(900)
final class ConnectStormTest {
    private static final long MEMORY_BYTES = 4096;
    private static final long CONNECT_LIMIT_NS = TimeUnit.MINUTES.toNanos(2);

    /**
     * @param busyCycles duty cycles of the dialling side during which the target does nothing
     */
    @ParameterizedTest
    @CsvSource({"300, 0, shm, 'shm tcp'", "300, 200, shm, 'shm tcp'", "100, 0, tcp, tcp", "100, 200, tcp, tcp"})
    void shouldServeAllByTheirFastestTransport(int peerCount, int busyCycles, String expected, String offered) {
        TransferOptions options = TransferOptions.defaults()
                .withTransports(offered.split(" "))
                .with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS)
                .with(TransferOptions.THREADING, ThreadingMode.CALLER);
        try (DrivenEngine target = new DrivenEngine(options, "target", MEMORY_BYTES);
                DrivenEngine writer = new DrivenEngine(options, "writer", MEMORY_BYTES)) {
            List<Peer> peers = new ArrayList<>();
            for (int i = 0; i < peerCount; i++) {
                Admission admission = target.engine().admit("writer " + i);
                peers.add(writer.engine().connect(target.engine().address(), admission.key(), "target " + i));
            }
            for (int i = 0; i < busyCycles; i++) {
                TestedClock.cycleOf(writer);
            }
            DrivenEngine.awaitBoth(
                    "all peers", writer, target, () -> writer.ready.size() + writer.lost.size() == peerCount);
            assertThat(writer.lost).isEmpty();
            assertThat(peers.stream().collect(Collectors.groupingBy(Peer::transport, Collectors.counting())))
                    .isEqualTo(Map.of(expected, (long) peerCount));
        }
    }
}
