package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A messenger that waits does nothing until an input or its next deadline: it takes no core from its engine. */
class RestTest extends ComparingPair {
    /** What a pair waits for. */
    enum Wait {
        NOTHING,
        A_PROMPT,
        A_LAYER,
        A_GRANT,
        COMPLETIONS,
        CHECKSUMS,
        A_CONFIRMATION,
        A_VERDICT,
        A_PROOF
    }

    @ParameterizedTest
    @EnumSource
    void shouldDoNothingWhileItWaits(Wait wait) {
        bring(wait);
        decoder.messenger.doWork();
        prefiller.messenger.doWork();
        for (Side side : List.of(decoder, prefiller)) {
            assertThat(side.messenger.doWork()).isZero();
            assertThat(side.messenger.nextDeadlineNs()).isGreaterThan(nowNs);
            nowNs = Math.max(nowNs, side.messenger.nextDeadlineNs() - 1);
        }
    }

    private void bring(Wait wait) {
        landsLate = true;
        switch (wait) {
            case NOTHING -> carry();
            case A_PROMPT -> {
                fetch("r", 1, 0);
                carry();
            }
            case A_LAYER -> {
                fetch("r", 1, 0);
                carry();
                beginPass("r");
            }
            case A_GRANT -> {
                compute("r", 0);
                prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
                carry();
            }
            case COMPLETIONS -> {
                fetch("r", 1, 0);
                carry();
                compute("r", 0);
                carry();
            }
            case CHECKSUMS -> {
                send("r");
                prefiller.wire.take();
                fill();
            }
            case A_CONFIRMATION -> {
                bring(Wait.COMPLETIONS);
                decoder.cache.onCommand(new EngineCommand.Abandon("r"));
                carry();
            }
            case A_VERDICT -> {
                send("r");
                carry();
                decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
            }
            case A_PROOF -> {
                bring(Wait.A_VERDICT);
                decoder.cache.onCommand(new EngineCommand.Abandon("r"));
            }
        }
    }
}
