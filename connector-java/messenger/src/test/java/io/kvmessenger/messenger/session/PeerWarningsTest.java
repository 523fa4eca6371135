package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.SilentEngine;
import org.junit.jupiter.api.Test;

class PeerWarningsTest {
    private final SilentEngine engine = new SilentEngine();
    private long nowNs;
    private final PeerWarnings warnings = new PeerWarnings(engine, () -> nowNs);

    @Test
    void shouldSayEachPeerAndReasonOnceInAWhile() {
        for (int port = 1; port < 100; port++) {
            warnings.add("10.0.0.1:" + port, "shared_secret differs between p and 10.0.0.1:" + port);
        }
        warnings.add("10.0.0.2:1", "shared_secret differs between p and 10.0.0.2:1");
        warnings.add("10.0.0.1:1", "the peer closed the control link");
        assertThat(engine.lines)
                .hasSize(3)
                .first()
                .asString()
                .startsWith("WARNING the connection with 10.0.0.1:1 ended");

        nowNs += PeerWarnings.REPEAT_NS;
        warnings.add("10.0.0.1:7", "shared_secret differs between p and 10.0.0.1:7");
        assertThat(engine.lines).hasSize(4);
    }

    @Test
    void shouldBoundItsLinesWhateverPeersSay() {
        for (char word = 'a'; word < 'a' + 1000; word++) {
            warnings.add("10.0.0.1:1", "words" + word);
        }
        assertThat(engine.lines).hasSize(PeerWarnings.LINES_MAX);
    }
}
