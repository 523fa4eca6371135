package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.specdecode.ContextSlots;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** A decoder that compares what arrives: what it waits for, and what it makes of a difference. */
class PageChecksumTest extends ComparingPair {
    @Test
    void shouldArriveWhenItsPagesAreThoseOfThePrefiller() {
        send("r");
        fill();
        assertThat(decoder.reported).isEmpty();
        carry();
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("arrived r");
    }

    @Test
    void shouldArriveWhicheverComesFirst() {
        send("r");
        carry();
        assertThat(decoder.reported).isEmpty();
        fill();
        carry();
        assertThat(decoder.reported).containsExactly("arrived r");
    }

    @Test
    void shouldFailWhenAByteChangedOnItsWay() {
        send("r");
        MemorySegment kv = decoder.region.hostBytes();
        long lastByteOfFirstPage = 2L * 2 * Geometries.PAGE_TOKENS - 1;
        kv.set(ValueLayout.JAVA_BYTE, lastByteOfFirstPage, (byte)
                (kv.get(ValueLayout.JAVA_BYTE, lastByteOfFirstPage) ^ 4));
        fill();
        carry();
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("t-r", "arrived damaged", "prefiller at host:7");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldFailAtItsLimitWhenNobodySaysWhatThePagesHold() {
        send("r");
        fill();
        prefiller.wire.take();
        nowNs += LIMITS.fetchLimitNs();
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("the page checksums of transfer t-r did not arrive");
    }

    @Test
    void shouldFailWhenThePrefillerGoesBeforeItHasReportedWhatItsPagesHold() {
        send("r");
        fill();
        prefiller.wire.take();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "gone");
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).isEqualTo("gone");
    }

    @Test
    void shouldEndTheSessionOfAPeerThatSumsWhatItWasNotGranted() {
        send("r");
        fill();
        for (ControlFrame frame : prefiller.wire.take()) {
            Checksums.Builder wrong = frame.getChecksums().toBuilder();
            wrong.getWritesBuilder(0).setOffsetBytes(wrong.getWrites(0).getOffsetBytes() + 1);
            decoder.messenger.onFrame(
                    Wire.DIALLED_LINK,
                    ControlFrame.newBuilder().setChecksums(wrong).build());
        }
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("checksums of pages that it was not granted");
        assertThat(decoder.wire.closed).isTrue();
    }

    @Test
    void shouldHoldThePagesUntilTheyAreSummed() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.cache.onCommand(
                new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED, ContextSlots.NO_SLOT));
        List.copyOf(prefiller.transfer.submitted)
                .forEach(cookie -> prefiller.transfer.completions.add(handler -> handler.onWriteCompleted(cookie)));
        assertThat(prefiller.reported).isEmpty();
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(prefiller.wire.sent).singleElement().matches(ControlFrame::hasChecksums);
    }

    /** The prompt is computed again in other pages, and what the first ones held says nothing of those that arrive. */
    @Test
    void shouldCompareNothingWithTheChecksumsOfAnEarlierGrant() {
        fetch("r", 1, 0);
        carry();
        beginStep(chunk("r", Geometries.PAGE_TOKENS, new int[] {3}));
        endStep();
        decoder.messenger.onFrame(Wire.DIALLED_LINK, checksumsOfSubmitted(FIRST_GRANT));
        completeAllWrites();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        carry(); // the decoder has granted again
        prefiller.transfer.requests.clear();
        sendGranted("r");
        fill();
        carry();
        decoder.messenger.doWork();

        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_REGRANTED)).isEqualTo(1);
        assertThat(decoder.reported).containsExactly("arrived r");
    }
}
