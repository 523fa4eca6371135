package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Additional requirements on transports whose target checks each write before a byte of it lands. */
public abstract class CheckedTransportContractTest extends TransportContractTest {
    @Test
    void shouldLetNothingLandAfterAWindowIsClosed() {
        fillSource(new Random(7));
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        for (int round = 0; round < 50; round++) {
            ImmWindow window = grant(everything(), Long.MAX_VALUE, round);
            for (int i = 0; i < 8; i++) {
                writer.submit(peer, paged(window, all, all), round * 8L + i);
            }
            writer.await("some bytes", () -> window.arrivedWeight() > 0);
            window.close(true);
            target.memory().fill(GUARD);
            writer.await("all sent", () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
            ImmWindow marker = grant(everything(), 1, 1000L + round);
            writer.submit(peer, immediate(marker, 1), 1_000_000L + round);
            long cookie = 1000L + round;
            DrivenEngine.awaitBoth("the marker", target, writer, () -> target.filled.contains(cookie));
            assertThat(isGuard(target.memory())).as("round %d", round).isTrue();
            marker.close(true);
        }
        assertThat(target.engine().counters().of(TransferCounter.STRAYS)).isPositive();
        assertThat(target.closedAdmissions).isEmpty();
    }

    @Test
    void shouldRefuseAtTheTargetWhatTheWriterLetPass() {
        fillSource(new Random(5));
        ImmWindow window = target.openWindow(admission, pages(10, 11), 2, 1);
        allow(window, everything());
        writer.submit(peer, paged(window, new int[] {0, 1}, new int[] {10, 12}), 3);
        target.await("the refusal", () -> !target.refused.isEmpty());
        assertThat(target.refused.getFirst()).contains("writer", "offset " + 12 * PAGE_BYTES, "leaves its window");
        target.await("the end", () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(isGuard(target.memory()))
                .as("not even the page that was allowed")
                .isTrue();
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.WRITE_REFUSED);
        assertThat(writer.endings).containsOnly(java.util.Map.entry(3L, 1));
        assertThat(target.engine().counters().of(TransferCounter.WRITES_REFUSED))
                .isEqualTo(1);
    }

    @Test
    void shouldRefuseWhatAnotherWriterWritesToAWindow() {
        ImmWindow window = grant(everything(), 1, 8);
        try (DrivenEngine other = open("other")) {
            Peer second = secondWriter(other, window);
            other.memory().fill((byte) 7);
            other.submit(
                    second,
                    new SingleWrite(other.region(), 0, target.region().descriptor(), 0, PAGE_BYTES, remoteOfSecond, 1),
                    1);
            target.await("the refusal", () -> !target.refused.isEmpty());
            assertThat(target.refused.getFirst()).contains("other", "names a window of another peer");
            assertThat(isGuard(target.memory())).isTrue();
            assertThat(window.arrivedWeight()).isZero();
            assertThat(target.closedAdmissions).doesNotContainKey(admission.id());
        } finally {
            target.alongside(writer);
        }
    }
}
