package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.specdecode.ContextKind.Sending;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** Of context rows that go on request those are sent, and counted, that a fetch asks for. */
class RequestedRowsTest extends MessengerPair {
    private static final int NO_SLOT = ContextSlots.NO_SLOT;
    private static final int TOKEN_BYTES = 8;
    private static final int ROOM_BYTES = 64;

    private void connect(Sending token, Sending room) {
        sending = List.of(token, room);
        prefiller = new Side("prefiller", 1, 4);
        decoder = new Side("decoder", 2, 8);
        fetch("warm-up", token == Sending.ALWAYS || room == Sending.ALWAYS ? 0 : NO_SLOT, List.of(), 1);
        meet();
    }

    /** The rows that left for it, by their lengths. */
    private List<Integer> rowsSent() {
        return prefiller.transfer.requests.stream()
                .map(PagedWrites.class::cast)
                .filter(writes -> writes.source() != prefiller.region)
                .map(PagedWrites::pageBytes)
                .toList();
    }

    private void completeAll() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
    }

    /** One prompt from grant to end; how many rows its window waits for. */
    private long run(String request, int contextSlot, String... kinds) {
        prefiller.transfer.requests.clear();
        fetch(request, contextSlot, List.of(kinds), 1, 2);
        carry();
        compute(request, 0);
        end(request, PrefillOutcome.FINISHED, 3);
        completeAll();
        long posted = prefiller.transfer.requests.stream()
                .map(PagedWrites.class::cast)
                .filter(writes -> writes.source() == prefiller.region)
                .mapToLong(
                        writes -> (long) writes.weight() * writes.sourcePages().count())
                .sum();
        return decoder.transfer.windowWeights.getLast() - posted;
    }

    @Test
    void shouldSendBesidesWhatAlwaysGoesWhatIsAskedFor() {
        connect(Sending.ALWAYS, Sending.ON_REQUEST);
        assertThat(run("without", 7)).isEqualTo(1);
        assertThat(rowsSent()).containsExactly(TOKEN_BYTES);
        assertThat(run("with", 5, "room")).isEqualTo(2);
        assertThat(rowsSent()).containsExactly(TOKEN_BYTES, ROOM_BYTES);
        assertThat(run("naming all", 5, "room", "token")).isEqualTo(2);
    }

    @Test
    void shouldSendTheOneKindThatIsAskedForOutOfSeveral() {
        connect(Sending.ON_REQUEST, Sending.ON_REQUEST);
        assertThat(run("second", 7, "room")).isEqualTo(1);
        assertThat(rowsSent()).containsExactly(ROOM_BYTES);
        assertThat(run("first", 7, "token")).isEqualTo(1);
        assertThat(rowsSent()).containsExactly(TOKEN_BYTES);
    }

    @Test
    void shouldOpenItsWindowForTheRowsAlone() {
        connect(Sending.ALWAYS, Sending.ON_REQUEST);
        fetch("without", 7, List.of(), 1, 2);
        fetch("with", 7, List.of("room"), 1, 2);
        List<Integer> parts = decoder.transfer.windowAreas.stream()
                .map(area -> area.parts().size())
                .toList();
        assertThat(parts.subList(parts.size() - 2, parts.size())).containsExactly(2, 3);
    }

    /** No slot on either side, and nothing to wait for: the transfer is over with its KV. */
    @Test
    void shouldSendNoRowsWhereNoneAlwaysGoAndNoneAreAskedFor() {
        connect(Sending.ON_REQUEST, Sending.ON_REQUEST);
        fetch("r", NO_SLOT, List.of(), 1, 2);
        carry();
        compute("r", 0);
        completeAll();
        assertThat(rowsSent()).isEmpty();
        assertThat(prefiller.cache.held().writesInFlight()).isZero();
        end("r", PrefillOutcome.FINISHED, NO_SLOT);
        assertThat(prefiller.reported).endsWith("released r");
    }

    @Test
    void shouldNotifyAnEngineThatListensOfWhatIsAskedFor() {
        connect(Sending.ALWAYS, Sending.ON_REQUEST);
        announce("r");
        fetch("r", 7, List.of("room"), 1, 2);
        carry();
        compute("r", 0);
        assertThat(prefiller.reported).contains("granted r [0, " + PROMPT_TOKENS + ") with room");
    }

    @Test
    void shouldFailATransferWhosePrefillerHasLeftNoRows() {
        connect(Sending.ON_REQUEST, Sending.ON_REQUEST);
        fetch("r", 7, List.of("room"), 1, 2);
        carry();
        compute("r", 0);
        end("r", PrefillOutcome.FINISHED, NO_SLOT);
        completeAll();
        assertThat(rowsSent()).isEmpty();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure)
                .contains("the prefiller's engine has left no context rows for transfer t-r, and the decoder asks for"
                        + " some of [token of 8 bytes on request, room of 64 bytes on request]");
        assertThat(prefiller.reported).endsWith("released r");
    }

    @Test
    void shouldFailAFetchThatAsksForWhatThereIsNot() {
        connect(Sending.ALWAYS, Sending.ON_REQUEST);
        fetch("r", 7, List.of("logits"), 1, 2);
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure)
                .contains("context row logits is asked for, expected one of [token of 8 bytes, room of 64 bytes on"
                        + " request]: ask for kinds that the messenger was opened with");
    }

    @Test
    void shouldFailAFetchWhoseSlotAndRowsDoNotBelongTogether() {
        connect(Sending.ON_REQUEST, Sending.ON_REQUEST);
        fetch("slot alone", 7, List.of(), 1, 2);
        fetch("rows alone", NO_SLOT, List.of("room"), 1, 2);
        assertThat(decoder.reported).containsExactly("failed slot alone", "failed rows alone");
    }

    @Test
    void shouldRefuseAGrantWhereAKindAlwaysGoesOnOneSideOnly() {
        sending = List.of(Sending.ALWAYS, Sending.ALWAYS);
        prefiller = new Side("prefiller", 1, 4);
        sending = List.of(Sending.ALWAYS, Sending.ON_REQUEST);
        decoder = new Side("decoder", 2, 8);
        fetch("warm-up", 0, List.of(), 1);
        meet();
        fetch("r", 7, List.of("room"), 1, 2);
        carry();
        assertThat(decoder.lastFailure)
                .contains("the decoder's context rows are [token of 8 bytes, room of 64 bytes on request] and the"
                        + " prefiller's [token of 8 bytes, room of 64 bytes]");
    }

    /** A peer's number: there are two kinds. */
    @Test
    void shouldDeclineAGrantThatAsksForAKindThatThereIsNot() {
        connect(Sending.ALWAYS, Sending.ON_REQUEST);
        fetch("r", 7, List.of("room"), 1, 2);
        for (ControlFrame frame : decoder.wire.take()) {
            assertThat(frame.getGrant().getContextRequested()).isEqualTo(2);
            prefiller.messenger.onFrame(
                    Wire.DIALLED_LINK,
                    frame.toBuilder()
                            .setGrant(frame.getGrant().toBuilder().setContextRequested(6))
                            .build());
        }
        carry();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("context row 2 is asked for");
    }

    /** Of a transfer without rows everything is taken when its KV has come, so a fence waits for that. */
    @Test
    void shouldFenceKvThatMayBeTakenWithoutRows() {
        connect(Sending.ON_REQUEST, Sending.ON_REQUEST);
        fetch("r", NO_SLOT, List.of(), 1, 2);
        carry();
        compute("r", 0);
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));
        assertThat(fenced).isNotCompleted();
        completeAll();
        assertThat(fenced).isCompleted();
    }
}
