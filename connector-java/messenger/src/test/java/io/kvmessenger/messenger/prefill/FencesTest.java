package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** When the pages of a preempted prompt may have a new owner. */
class FencesTest {
    private static final TransferKey TRANSFER = new TransferKey("t", "");

    private final Fences fences = new Fences(false);
    private final CompletableFuture<Void> fenced = new CompletableFuture<>();

    @Test
    void shouldHoldAFenceUntilNoDecodersWriteReadsThePages() {
        Prefill prefill = new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0);
        Delivery first = delivery(prefill);
        Delivery second = delivery(prefill);
        fences.add(prefill, fenced, 0);

        first.writesInFlight = 0;
        fences.onDrained(prefill);
        assertThat(fenced).as("the second decoder's write is under way").isNotDone();
        assertThat(fences.count()).isOne();

        second.writesInFlight = 0;
        fences.onDrained(prefill);
        assertThat(fenced).isDone();
        assertThat(fences.count()).isZero();
    }

    private static Delivery delivery(Prefill prefill) {
        DecoderSession session = Decoders.attached(Geometries.of("m"), Geometries.of("m"));
        PageGrant grant =
                new PageGrant(session, 1, TRANSFER, 1, 1, 0, List.of(new int[] {1}), ContextSlots.NO_SLOT, 0, 0, 0, 0);
        Delivery delivery = new Delivery(prefill, grant, List.of());
        delivery.writesInFlight = 1;
        prefill.deliveries.add(delivery);
        return delivery;
    }
}
