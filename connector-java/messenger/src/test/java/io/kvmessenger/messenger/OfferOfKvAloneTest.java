package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Engines whose rows go with every computed prompt pull without them, and get no computed prompt without them. */
class OfferOfKvAloneTest extends MessengerPair {
    private static final TransferKey TRANSFER = new TransferKey("pull-1", "ab");
    private static final List<PrefillerAddress> SOURCE = List.of(new PrefillerAddress("host", 7, ""));
    private static final int HELD_TOKENS = 2 * Geometries.PAGE_TOKENS;

    @BeforeEach
    void connectWithRows() {
        prefiller = new Side("prefiller", 1, 4);
        decoder = new Side("decoder", 2, 8);
        fetch("warm-up", 0, List.of(), 1);
        meet();
    }

    private void ask() {
        int[] tokens = IntStream.range(0, HELD_TOKENS).toArray();
        decoder.cache.onCommand(
                new EngineCommand.Ask("q", TRANSFER, SOURCE.getFirst(), new EngineCommand.Prompt(tokens, "", 0), 200));
        carry();
    }

    private void offer() {
        prefiller.cache.onCommand(new EngineCommand.Offer(
                "o", TRANSFER, true, HELD_TOKENS, List.of(new ChunkPages(0, new int[] {5, 6})), OfferOutcome.HELD));
        carry();
    }

    private void fetchWith(int contextSlot) {
        decoder.cache.onCommand(new EngineCommand.Fetch(
                "q",
                TRANSFER.id(),
                SOURCE,
                HELD_TOKENS,
                0,
                List.of(new int[] {3, 4}),
                contextSlot,
                List.of(),
                100,
                TRANSFER.digest(),
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE));
        carry();
    }

    @Test
    void shouldDeliverAnOfferWithoutRows() {
        ask();
        offer();
        fetchWith(-1);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        decoder.transfer.reportFilled();
        carry();
        assertThat(decoder.reported).contains("arrived q");
        assertThat(prefiller.reported).contains("released o");
    }

    /** An engine of several messengers gives each its part. */
    @Test
    void shouldDeliverAPartThatComesBehindItsGrant() {
        fetchWith(-1);
        prefiller.cache.onCommand(new EngineCommand.Offer(
                "o", TRANSFER, false, HELD_TOKENS, List.of(new ChunkPages(0, new int[] {5, 6})), OfferOutcome.HELD));
        carry();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        decoder.transfer.reportFilled();
        carry();
        assertThat(decoder.reported).contains("arrived q");
        assertThat(prefiller.reported).contains("released o");
    }

    @Test
    void shouldRefuseAnOffersRowsWhichItHasNot() {
        ask();
        offer();
        fetchWith(2);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        assertThat(decoder.reported).contains("failed q").doesNotContain("arrived q");
        assertThat(prefiller.reported).contains("released o");
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldRefuseAComputedPromptWithoutItsRows(boolean computedFirst) {
        if (computedFirst) {
            compute("r", 0);
        }
        fetch("r", -1, List.of(), 1, 2);
        carry();
        if (!computedFirst) {
            assertThat(decoder.reported).as("a part of an offer may be to come").isEmpty();
            compute("r", 0);
            carry();
        }
        assertThat(decoder.reported).contains("failed r");
        assertThat(decoder.lastFailure).contains("context slot -1 for ");
    }
}
