package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.decode.SourceCoverage;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand;
import java.util.List;
import org.junit.jupiter.api.Test;

/** A prefiller's engine with two messengers, each of which serves one of two heads: a fetch has to name both. */
class ForgottenMessengerTest extends MessengerPair {
    private static final Sharding TWO_RANKS = new Sharding(2, 1, 1);
    private static final KvGeometry FIRST = Geometries.oneOfTwo("m", 0, TWO_RANKS);
    private static final KvGeometry SECOND = Geometries.oneOfTwo("m", 1, TWO_RANKS);

    ForgottenMessengerTest() {
        prefiller = new Side("prefiller", 1, 0, ChecksumMode.OFF, FIRST);
    }

    @Test
    void shouldFailAFetchThatNamesOneOfTwoMessengersBeforeItGrants() {
        fetch("r", 1, 0);
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure)
                .contains(
                        "the prefillers named for transfer t-r (prefiller at host:7) send 4 pieces of 8",
                        "name every messenger of one prefiller's engine, and no other",
                        "TP 2 x PP 1 x DP 1 (1 of 2 ranks)");
        assertThat(decoder.transfer.windowCookies).as("nothing may be written").isEmpty();
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldTakeAllMessengersOfOneEngine() {
        assertThat(gap(FIRST, SECOND)).isEmpty();
        assertThat(gap(SECOND, FIRST)).isEmpty();
    }

    @Test
    void shouldNotTakeOneThatIsForgottenOrTooMany() {
        assertThat(gap(SECOND)).contains("send 4 pieces of 8");
        assertThat(gap(FIRST, SECOND, SECOND)).contains("send 12 pieces of 8");
        assertThat(gap(FIRST, SECOND, Geometries.of("m"))).contains("send 12 pieces of 8");
    }

    @Test
    void shouldNotTakeMessengersOfTwoEnginesAlthoughTheirHeadsAddUp() {
        KvGeometry ofAnother = Geometries.oneOfTwo("m", 1, new Sharding(2, 1, 2));

        assertThat(gap(FIRST, ofAnother)).contains("name every messenger of one prefiller's engine, and no other");
    }

    private static String gap(KvGeometry... sources) {
        EngineCommand.Fetch ask = fetchOf("r", 1, 0, "", EngineCommand.Prompt.NONE);
        return new SourceCoverage(Geometries.of("m")).gap(List.of(sources), ask, "host:7");
    }
}
