package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** Rows that follow the KV of a transfer, and make it complete. */
class ContextRowTest extends MessengerPair {
    private void connectWithContext(int prefillerSlots, int decoderSlots) {
        prefiller = new Side("prefiller", 1, prefillerSlots);
        decoder = new Side("decoder", 2, decoderSlots);
        fetchWithContext("warm-up", 0, 1);
        meet();
    }

    private void fetchWithContext(String request, int contextSlot, int... pages) {
        fetch(request, contextSlot, List.of(), pages);
    }

    @Test
    void shouldSendContextRowsWhenAllKvHasLeftAndTheEngineHasEndedTheRequest() {
        connectWithContext(4, 8);
        fetchWithContext("r", 7, 1, 2);
        carry();
        compute("r", 0);
        completeOneWrite();
        end("r", EngineCommand.PrefillOutcome.FINISHED, 3);
        int kvWrites = prefiller.transfer.submitted.size();
        for (int i = 0; i < kvWrites; i++) {
            assertThat(prefiller.transfer.submitted).hasSize(kvWrites - i);
            completeOneWrite();
        }
        assertThat(prefiller.transfer.submitted).hasSize(2);
        assertThat(prefiller.reported).doesNotContain("released r");
        completeOneWrite();
        completeOneWrite();

        assertThat(prefiller.reported).endsWith("released r");
        assertThat(prefiller.cache.held().writesInFlight()).isZero();
    }

    @Test
    void shouldSendNoContextRowOfARequestThatIsAborted() {
        connectWithContext(4, 8);
        fetchWithContext("r", 7, 1, 2);
        carry();
        compute("r", 0);
        end("r", EngineCommand.PrefillOutcome.ABORTED, -1);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();

        assertThat(prefiller.reported).endsWith("released r");
        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldFenceAtOnceWhatTheDecoderWillNotTakeWithoutItsRows() {
        connectWithContext(4, 8);
        fetchWithContext("r", 7, 1, 2);
        carry();
        compute("r", 0);
        end("r", EngineCommand.PrefillOutcome.FINISHED, 3);
        end("r", EngineCommand.PrefillOutcome.ABORTED, -1);
        assertThat(prefiller.transfer.submitted)
                .as("KV that is still being read")
                .isNotEmpty();
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));

        assertThat(fenced).isCompleted();
        assertThat(decoder.reported).as("its pages may still be written").isEmpty();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(prefiller.cache.held().writesInFlight()).isZero();
    }

    @Test
    void shouldFenceRowsThatAreUnderWayOnlyWhenTheyHaveLeft() {
        connectWithContext(4, 8);
        fetchWithContext("r", 0);
        carry();
        compute("r", 0);
        end("r", EngineCommand.PrefillOutcome.FINISHED, 0);
        end("r", EngineCommand.PrefillOutcome.ABORTED, -1);
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));

        assertThat(fenced).isNotCompleted();
        completeOneWrite();
        assertThat(fenced).isNotCompleted();
        completeOneWrite();
        assertThat(fenced).isCompleted();
    }

    @Test
    void shouldSendContextRowsAloneWhenTheDecoderHasAllPages() {
        connectWithContext(4, 8);
        fetchWithContext("r", 0);
        carry();
        compute("r", 0);
        assertThat(prefiller.transfer.submitted).isEmpty();
        end("r", EngineCommand.PrefillOutcome.FINISHED, 0);

        assertThat(prefiller.transfer.submitted).hasSize(2);
    }

    @Test
    void shouldRefuseAGrantWhoseContextRowsAreOthers() {
        connectWithContext(0, 8);
        fetchWithContext("r", 7, 1, 2);
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldFailAFetchWhoseContextSlotIsNone() {
        connectWithContext(4, 8);
        fetchWithContext("r", 8, 1, 2);

        assertThat(decoder.reported).containsExactly("failed r");
    }
}
