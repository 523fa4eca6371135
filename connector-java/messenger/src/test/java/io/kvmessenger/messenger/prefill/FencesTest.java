package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** When the pages of a preempted prompt may have a new owner. */
class FencesTest {
    private static final TransferKey TRANSFER = new TransferKey("t", "");
    private static final int DECODERS = 3;

    private final Fences fences = new Fences(false);
    private final CompletableFuture<Void> fenced = new CompletableFuture<>();

    /**
     * @param rowsFollow whether a decoder takes no KV without context rows
     * @param rows for each decoder, whether its rows are under way, and so all of its KV has left
     * @param order in which the decoders' last writes complete
     */
    private record Case(boolean rowsFollow, List<Boolean> rows, List<Integer> order) {}

    static Stream<Case> cases() {
        return Stream.of(true, false)
                .flatMap(follow -> IntStream.range(0, 1 << DECODERS)
                        .mapToObj(bits -> IntStream.range(0, DECODERS)
                                .mapToObj(decoder -> (bits & 1 << decoder) != 0)
                                .toList())
                        .flatMap(rows -> orders(List.of()).map(order -> new Case(follow, rows, order))));
    }

    private static Stream<List<Integer>> orders(List<Integer> begun) {
        return begun.size() == DECODERS
                ? Stream.of(begun)
                : IntStream.range(0, DECODERS)
                        .boxed()
                        .filter(decoder -> !begun.contains(decoder))
                        .flatMap(decoder -> orders(Stream.concat(begun.stream(), Stream.of(decoder))
                                .toList()));
    }

    /** Not later: the engine of which the fence is stands still meanwhile. */
    @ParameterizedTest
    @MethodSource("cases")
    void shouldCompleteAFenceWithTheLastWriteThatItWaitsFor(Case given) {
        Fences kept = new Fences(given.rowsFollow);
        Prefill prefill = new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0);
        given.rows.forEach(rows -> delivery(prefill).nextContextRow = rows ? 1 : 0);
        kept.add(prefill, fenced, 0);
        kept.completeIfQuiet(fenced);

        List<Integer> left = new ArrayList<>(given.order);
        for (int decoder : given.order) {
            boolean waits = left.stream().anyMatch(each -> !given.rowsFollow || given.rows.get(each));
            assertThat(fenced.isDone()).as("decoders with writes: %s", left).isEqualTo(!waits);
            left.remove((Integer) decoder);
            prefill.deliveries.get(decoder).writesInFlight = 0;
            kept.onDrained(prefill);
        }
        assertThat(fenced).isDone();
        assertThat(kept.count()).isZero();
    }

    /** A session that holds no write of those delays nothing, and its other requests would end with it. */
    @ParameterizedTest
    @MethodSource("cases")
    void shouldEndTheSessionsThatDelayAFenceAndNoOthers(Case given) {
        Fences kept = new Fences(given.rowsFollow);
        Prefill prefill = new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0);
        List<Delivery> deliveries =
                given.rows.stream().map(rows -> delivery(prefill)).toList();
        for (int decoder = 0; decoder < DECODERS; decoder++) {
            deliveries.get(decoder).nextContextRow = given.rows.get(decoder) ? 1 : 0;
        }
        kept.add(prefill, fenced, 0);
        kept.completeIfQuiet(fenced);
        int drained = given.order.getFirst();
        deliveries.get(drained).writesInFlight = 0;
        kept.onDrained(prefill);

        List<DecoderSession> late = IntStream.range(0, DECODERS)
                .filter(decoder -> decoder != drained && (!given.rowsFollow || given.rows.get(decoder)))
                .mapToObj(decoder -> deliveries.get(decoder).grant.session())
                .toList();
        assertThat(kept.holdersAfter(0)).containsExactlyElementsOf(late);
        assertThat(kept.earliestNs(Long.MAX_VALUE / 2, 7)).isEqualTo(late.isEmpty() ? Long.MAX_VALUE / 2 : 7);
    }

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
