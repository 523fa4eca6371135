package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.MessengerState.FailureRow;
import io.kvmessenger.messenger.port.MessengerState.FetchRow;
import io.kvmessenger.messenger.port.MessengerState.GrantRow;
import io.kvmessenger.messenger.port.MessengerState.PrefillRow;
import io.kvmessenger.messenger.port.MessengerState.Span;
import io.kvmessenger.messenger.port.MessengerState.TransferRow;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What a messenger says to people of what it holds, at each stage of a transfer. */
class MessengerStateTest extends MessengerPair {
    private static final int ROWS_MAX = 10;

    private MessengerState ofDecoder() {
        return decoder.cache.describe(ROWS_MAX);
    }

    private MessengerState ofPrefiller() {
        return prefiller.cache.describe(ROWS_MAX);
    }

    @Test
    void shouldSayWhatAFetchWaitsForUntilItsKvIsThere() {
        decoder.transfer.freeSlots = 0;
        fetch("r", 1, 700);
        nowNs += 40;
        assertThat(ofDecoder().fetches())
                .containsExactly(new FetchRow("r", "t-r", 2, 40, 660, List.of("prefiller at host:7: an imm slot")));
        decoder.transfer.freeSlots = 1;
        decoder.messenger.doWork();
        assertThat(ofDecoder().fetches().getFirst().waitsFor())
                .singleElement()
                .asString()
                .startsWith("prefiller at host:7: KV, 0 of ");
        carry();
        nowNs += 5;
        assertThat(ofPrefiller().grants()).containsExactly(new GrantRow("t-r", "decoder at there:1", PROMPT_TOKENS, 5));
        assertThat(ofPrefiller().grantCount()).isEqualTo(1);
    }

    @Test
    void shouldSayWhatAPrefillWaitsFor() {
        announce("r");
        assertThat(ofPrefiller().prefills())
                .containsExactly(new PrefillRow("r", "t-r", 0, 0, List.of("a decoder's grant")));
        fetch("r", 1, 0);
        carry();
        beginPass("r");
        assertThat(ofPrefiller().prefills().getFirst().waitsFor())
                .singleElement()
                .asString()
                .startsWith("decoder at there:1: the rest of its forward passes; ")
                .endsWith(" writes under way, 0 pages have left");
    }

    @Test
    void shouldKeepWhyTransfersFailed() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        nowNs += 9;
        assertThat(ofDecoder().failures().getFirst())
                .isEqualTo(new FailureRow("decoder", "r", "t-r", 9, "abandoned", "the engine gave the request up"));
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        assertThat(ofPrefiller().failures().getFirst().reason()).isEqualTo("unwanted");
        assertThat(ofPrefiller().prefillCount()).isZero();
    }

    @Test
    void shouldKeepTheTimesOfTransfersThatEndedWithTheirKv() {
        nowNs = 1;
        transfer("r");
        nowNs += 7;
        TransferRow sent = ofPrefiller().transfers().getFirst();
        TransferRow arrived = ofDecoder().transfers().getFirst();
        assertThat(sent)
                .isEqualTo(new TransferRow(
                        "prefiller",
                        "r",
                        "t-r",
                        sent.lengthBytes(),
                        7,
                        List.of(
                                new Span("grant waits", 0, 20),
                                new Span("forward passes", 20, 50),
                                new Span("writes", 20, 90))));
        assertThat(sent.lengthBytes()).isPositive();
        assertThat(arrived)
                .isEqualTo(new TransferRow(
                        "decoder",
                        "r",
                        "t-r",
                        sent.lengthBytes(),
                        7,
                        List.of(new Span("grant", 0, 10), new Span("KV", 10, 100))));
    }

    @Test
    void shouldShowWhatAPullWaitedForBeforeItsFetch() {
        History history = new History();
        history.arrived(new FetchTimeline("r", "t", 2, 64, 100, 110, 140, "p", new EngineCommand.PullWaits(20, 30)));

        assertThat(history.transfers(140).getFirst().spans())
                .containsExactly(
                        new Span("question", 0, 20),
                        new Span("pages", 20, 50),
                        new Span("grant", 50, 60),
                        new Span("KV", 60, 90));
    }

    /** Times, counted from its first moment: granted after 10 ns, begun after 30, computed after 60, left after 100. */
    private void transfer(String request) {
        announce(request);
        decoder.transfer.freeSlots = 0;
        fetch(request, 1, 0);
        nowNs += 10;
        decoder.transfer.freeSlots = 1;
        carry();
        nowNs += 20;
        beginPass(request);
        nowNs += 30;
        endStep();
        end(request, EngineCommand.PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
        nowNs += 40;
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(decoder.transfer.windowCookies.getLast()));
        carry();
    }

    @Test
    void shouldBoundWhatItShowsAndKeeps() {
        decoder.transfer.freeSlots = 0;
        for (int i = 0; i < ROWS_MAX + 1; i++) {
            fetch("r" + i, 1, 0);
        }
        assertThat(ofDecoder().fetchCount()).isEqualTo(ROWS_MAX + 1);
        assertThat(ofDecoder().fetches()).hasSize(ROWS_MAX);
        for (int i = 0; i < 2 * History.FAILURES_KEPT_MAX; i++) {
            fetch("failing-" + i, 1, 0);
            decoder.cache.onCommand(new EngineCommand.Abandon("failing-" + i));
        }
        assertThat(ofDecoder().failures()).hasSize(History.FAILURES_KEPT_MAX);
        assertThat(ofDecoder().failures().getFirst().request())
                .isEqualTo("failing-" + (2 * History.FAILURES_KEPT_MAX - 1));
    }

    @Test
    void shouldNameItsPeers() {
        nowNs += 3;
        assertThat(ofDecoder().peers()).singleElement().satisfies(peer -> {
            assertThat(peer.name()).isEqualTo("prefiller at host:7");
            assertThat(peer.role()).isEqualTo("prefiller");
            assertThat(peer.state()).isEqualTo("ready");
            assertThat(peer.unheardNs()).isEqualTo(3);
        });
        assertThat(ofPrefiller().peers().getFirst().role()).isEqualTo("decoder");
    }
}
