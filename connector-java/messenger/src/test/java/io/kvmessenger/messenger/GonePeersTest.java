package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Peers come and go for as long as an engine runs: its memory does not grow with those that are gone. */
class GonePeersTest extends MessengerPair {
    private void serve(String request) {
        fetch(request, 1, 0);
        carry();
        compute(request, 0);
        end(request, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        decoder.transfer.reportFilled();
        carry();
        assertThat(decoder.reported).contains("arrived " + request);
        assertThat(prefiller.reported).contains("released " + request);
    }

    private void leave() {
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        prefiller.messenger.doWork();
    }

    private <T> List<T> kept(Side by, Class<T> kind) throws IllegalAccessException {
        return Reachable.from(by.messenger, kind, this, by, by.transfer);
    }

    @Test
    void shouldKnowADecoderWhileItIsThere() throws IllegalAccessException {
        serve("r");

        assertThat(kept(prefiller, Session.class)).hasSize(1);
        assertThat(kept(prefiller, Peer.class)).hasSize(1);
    }

    @Test
    void shouldKeepNothingOfADecoderThatIsGone() throws IllegalAccessException {
        serve("r");
        leave();

        assertThat(kept(prefiller, Session.class))
                .as("its session, and with it the routes to its memory")
                .isEmpty();
        assertThat(kept(prefiller, Peer.class)).as("its data paths").isEmpty();
    }

    @Test
    void shouldKeepNothingOfAPrefillerThatIsGone() throws IllegalAccessException {
        serve("r");
        assertThat(kept(decoder, Session.class)).hasSize(1);
        leave();
        Admission admission = decoder.transfer.admitted.getLast();
        decoder.transfer.completions.add(handler -> handler.onAdmissionClosed(admission, "the peer has gone"));
        decoder.messenger.doWork();

        assertThat(kept(decoder, Session.class)).isEmpty();
        assertThat(kept(decoder, Admission.class)).as("its right to write here").isEmpty();
    }
}
