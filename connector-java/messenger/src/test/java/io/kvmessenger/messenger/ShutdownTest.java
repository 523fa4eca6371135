package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** What an engine that ends in good order still does, and what it tells the other side. */
class ShutdownTest extends MessengerPair {
    @Test
    void shouldDeclineAllGrantsWhenItShutsDown() {
        fetch("r", 1, 0);
        carry();
        CompletableFuture<Void> drained = drain(prefiller);
        assertThat(reasons()).containsExactly(CannotDeliver.Reason.SHUTTING_DOWN);
        carry();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(drained).isDone();

        fetch("s", 1, 0);
        decoder.wire.take().forEach(f -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, f));
        assertThat(reasons()).containsExactly(CannotDeliver.Reason.SHUTTING_DOWN);
        carry();
        assertThat(decoder.reported).containsExactly("failed r", "failed s");
    }

    @Test
    void shouldLetLeaveWhatIsComputedWhenItShutsDown() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        CompletableFuture<Void> drained = drain(prefiller);
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(drained).isNotDone();
            completeOneWrite();
        }
        prefiller.messenger.doWork();
        assertThat(drained).isDone();
        assertThat(prefiller.wire.sent).isEmpty();
    }

    @Test
    void shouldStopWhatIsNotComputedWhenItShutsDownOnceItsWritesHaveEnded() {
        fetch("r", 1, 0);
        carry();
        beginStep(new EngineCommand.Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, Geometries.PAGE_TOKENS, 0, new int[] {5}));
        endStep();
        assertThat(prefiller.transfer.submitted).isNotEmpty();
        CompletableFuture<Void> drained = drain(prefiller);
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(prefiller.wire.sent).isEmpty();
            assertThat(drained).isNotDone();
            completeOneWrite();
        }
        prefiller.messenger.doWork();
        assertThat(reasons()).containsExactly(CannotDeliver.Reason.SHUTTING_DOWN);
        assertThat(drained).isDone();
    }

    @Test
    void shouldCancelItsFetchesWhenTheDecoderShutsDown() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        CompletableFuture<Void> drained = drain(decoder);
        carry();
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(drained).isNotDone();
            completeOneWrite();
            carry();
        }
        assertThat(decoder.reported).containsExactly("failed r");
        decoder.messenger.doWork();
        assertThat(drained).isDone();
    }

    @Test
    void shouldKeepTheDataPathsUntilThePeerHasHungUp() {
        fetch("r", 1, 0);
        carry();
        CompletableFuture<Void> left = new CompletableFuture<>();
        prefiller.messenger.leave("going", left);
        prefiller.messenger.doWork();
        assertThat(left).isNotDone();
        assertThat(prefiller.transfer.disconnected).isEmpty();
        carry();
        assertThat(decoder.wire.closed).isTrue();

        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "the peer closed the control link");
        prefiller.messenger.doWork();
        assertThat(left).isDone();
        assertThat(prefiller.transfer.disconnected).hasSize(1);
    }

    private static CompletableFuture<Void> drain(Side side) {
        CompletableFuture<Void> drained = new CompletableFuture<>();
        side.messenger.drain("going", drained);
        side.messenger.doWork();
        return drained;
    }

    /** Of the frames that the prefiller has sent and that are not delivered yet. */
    private List<CannotDeliver.Reason> reasons() {
        return prefiller.wire.sent.stream()
                .filter(ControlFrame::hasCannotDeliver)
                .map(frame -> frame.getCannotDeliver().getReason())
                .toList();
    }
}
