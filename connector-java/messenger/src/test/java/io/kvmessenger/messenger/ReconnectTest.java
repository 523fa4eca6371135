package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.List;
import java.util.function.Predicate;
import org.junit.jupiter.api.Test;

/** A prefiller that was lost is a new one when it is asked again, and is told nothing twice. */
class ReconnectTest extends MessengerPair {
    private static final List<EngineCommand.PrefillerAddress> PREFILLER =
            List.of(new EngineCommand.PrefillerAddress("host", 7, ""));

    private void lose() {
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        decoder.wire.take();
        prefiller.wire.take();
    }

    private void reconnect() {
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
    }

    @Test
    void shouldServeARequestAfterTheLinkBroke() {
        lose();
        fetch("r", 1, 0);
        reconnect();
        carry();
        compute("r", 0);
        long cookie = decoder.transfer.windowCookies.getLast();
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(cookie));
        carry();

        assertThat(decoder.reported).containsExactly("arrived r");
    }

    @Test
    void shouldReportWhichPrefillersAreGone() {
        fetch("r", 1, 0);
        decoder.connected.clear();
        lose();
        assertThat(decoder.connected).containsExactly("host:7 is gone");
        decoder.cache.onCommand(new EngineCommand.Reject("t", PREFILLER));
        assertThat(decoder.connected).hasSize(1);
        reconnect();
        carry();
        assertThat(decoder.connected).hasSize(2).last().asString().startsWith("host:7 is 1 before");
    }

    @Test
    void shouldSendWhatWaitedForTheSessionOnce() {
        sayOfEach();
        assertThat(framesAboutTransfers()).isEqualTo(3);

        lose();
        sayOfEach();
        assertThat(framesAboutTransfers()).isZero();
        reconnect();
        assertThat(framesAboutTransfers()).isEqualTo(3);

        lose();
        fetch("r", 1, 0);
        reconnect();
        assertThat(framesAboutTransfers()).isZero();
    }

    private void sayOfEach() {
        decoder.cache.onCommand(new EngineCommand.Expect(new TransferKey("expected", ""), PREFILLER));
        decoder.cache.onCommand(new EngineCommand.Decline(new TransferKey("declined", ""), PREFILLER));
        decoder.cache.onCommand(new EngineCommand.Reject("rejected", PREFILLER));
    }

    /** Carries all frames; returns how many of the decoder's were about transfers without a grant. */
    private long framesAboutTransfers() {
        Predicate<ControlFrame> wanted = frame -> frame.hasExpect() || frame.hasDecline() || frame.hasRejected();
        long count = 0;
        do {
            decoder.messenger.doWork();
            prefiller.messenger.doWork();
            List<ControlFrame> sent = decoder.wire.take();
            count += sent.stream().filter(wanted).count();
            sent.forEach(frame -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, frame));
            prefiller.wire.take().forEach(frame -> decoder.messenger.onFrame(Wire.DIALLED_LINK, frame));
        } while (!decoder.wire.sent.isEmpty() || !prefiller.wire.sent.isEmpty());
        return count;
    }
}
