package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;

/** A decoder that compares what arrives: what it waits for, and what it makes of a difference. */
class PageChecksumTest extends MessengerPair {
    PageChecksumTest() {
        decoder = new Side("decoder", 2, 0, ChecksumMode.FULL);
        byte[] kv = new byte[(int) prefiller.region.memory().byteSize()];
        new SplittableRandom(3).nextBytes(kv);
        MemorySegment.copy(kv, 0, prefiller.region.memory(), ValueLayout.JAVA_BYTE, 0, kv.length);
    }

    @Test
    void shouldArriveWhenItsPagesAreThoseOfThePrefiller() {
        send("r");
        fill();
        assertThat(decoder.told).isEmpty();
        carry();
        decoder.messenger.doWork();
        assertThat(decoder.told).containsExactly("arrived r");
    }

    @Test
    void shouldArriveWhicheverComesFirst() {
        send("r");
        carry();
        assertThat(decoder.told).isEmpty();
        fill();
        carry();
        assertThat(decoder.told).containsExactly("arrived r");
    }

    @Test
    void shouldFailWhenAByteChangedOnItsWay() {
        send("r");
        MemorySegment kv = decoder.region.memory();
        long lastByteOfFirstPage = 2L * 2 * Geometries.PAGE_TOKENS - 1;
        kv.set(ValueLayout.JAVA_BYTE, lastByteOfFirstPage, (byte)
                (kv.get(ValueLayout.JAVA_BYTE, lastByteOfFirstPage) ^ 4));
        fill();
        carry();
        decoder.messenger.doWork();
        assertThat(decoder.told).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("t-r", "arrived damaged", "prefiller at host:7");
        assertThat(decoder.messenger.held().clean()).isTrue();
    }

    @Test
    void shouldFailAtItsLimitWhenNobodySaysWhatThePagesHold() {
        send("r");
        fill();
        prefiller.wire.take();
        nowNs += LIMITS.fetchLimitNs();
        decoder.messenger.doWork();
        assertThat(decoder.told).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("the page checksums of transfer t-r did not arrive");
    }

    @Test
    void shouldFailWhenThePrefillerGoesBeforeItHasSaidWhatItsPagesHold() {
        send("r");
        fill();
        prefiller.wire.take();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "gone");
        decoder.messenger.doWork();
        assertThat(decoder.told).containsExactly("failed r");
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
        assertThat(decoder.told).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("checksums of pages that it was not granted");
        assertThat(decoder.wire.closed).isTrue();
    }

    @Test
    void shouldHoldThePagesUntilTheyAreSummed() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.messenger.onCommand(
                new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED, PeerContextRow.NO_SLOT));
        List.copyOf(prefiller.transfer.submitted)
                .forEach(cookie -> prefiller.transfer.completions.add(handler -> handler.onWriteCompleted(cookie)));
        assertThat(prefiller.told).isEmpty();
        prefiller.messenger.doWork();
        assertThat(prefiller.told).containsExactly("released r");
        assertThat(prefiller.wire.sent).singleElement().matches(ControlFrame::hasChecksums);
    }

    /** All KV of the request leaves the prefiller and lands. */
    private void send(String request) {
        fetch(request, 1, 0);
        carry();
        compute(request, 0);
        for (int i = 0; i < prefiller.transfer.requests.size(); i++) {
            land((PagedWrites) prefiller.transfer.requests.get(i));
        }
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        prefiller.messenger.doWork();
    }

    private void land(PagedWrites write) {
        for (int i = 0; i < write.sourcePages().count(); i++) {
            MemorySegment.copy(
                    write.source().memory(),
                    write.sourcePages().offsetOf(i),
                    decoder.region.memory(),
                    write.targetPages().offsetOf(i),
                    write.pageBytes());
        }
    }

    private void fill() {
        long cookie = decoder.transfer.windowCookies.getLast();
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(cookie));
        decoder.messenger.doWork();
    }
}
