package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.Reachable;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.List;
import org.junit.jupiter.api.Test;

/** An engine serves prompts for as long as it runs: what is remembered of them does not grow. */
class PrefillsTest {
    private static final TransferKey TRANSFER = new TransferKey("t", "");

    private final Prefills prefills = new Prefills(false);

    private Prefill ended(String request) {
        Prefill prefill = new Prefill(request, TRANSFER, List.of(), 0);
        prefills.add(prefill);
        prefill.become(Prefill.State.ENDED);
        prefills.expireAt(prefill, 10);
        prefills.touch(prefill);
        return prefill;
    }

    @Test
    void shouldKeepNothingOfAPromptThatIsOver() throws IllegalAccessException {
        Prefill first = ended("r");
        Prefill second = ended("s");
        assertThat(Reachable.from(prefills, String.class)).contains("r", "s", "t");
        prefills.remove(first);
        assertThat(Reachable.from(prefills, Prefill.class)).containsExactly(second);
        prefills.remove(second);

        assertThat(Reachable.from(prefills, Prefill.class)).isEmpty();
        assertThat(Reachable.from(prefills, String.class))
                .as("neither its name nor that of its transfer")
                .isEmpty();
    }
}
