package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.connector.GroupedEngine.Group;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Caches of two and three KV groups between two real messengers: every row of the decoder's memory is compared. */
@Timeout(900)
class GroupedKvTest {
    private static final int PROMPT_TOKENS = 53;
    private static final List<Group> PREFILLER =
            List.of(new Group("HND", 4, 16, 29), new Group("NHD", 2, 8, 31), new Group("LATENT", 1, 4, 43));
    /** Other page sizes where rows are tokens, and another number of pages everywhere. */
    private static final List<Group> DECODER =
            List.of(new Group("HND", 4, 16, 23), new Group("NHD", 2, 16, 19), new Group("LATENT", 1, 2, 97));

    @ParameterizedTest(name = "{0} groups over {1} from token {2}, checksums {3}")
    @CsvSource({"2, tcp, 0, off", "3, tcp, 16, full", "3, shm, 0, full", "2, shm, 32, sampled", "1, tcp, 0, full"})
    void shouldFillEachGroupsPagesAndNoOthers(int groups, String transport, int firstToken, String checksums) {
        Map<String, Object> options = Map.of("transports", List.of(transport), "pageChecksum", checksums);
        try (GroupedEngine prefiller = new GroupedEngine("prefiller", PREFILLER.subList(0, groups), options);
                GroupedEngine decoder = new GroupedEngine("decoder", DECODER.subList(0, groups), options)) {
            decoder.fetch("t", prefiller, PROMPT_TOKENS, firstToken);
            prefiller.compute("t", PROMPT_TOKENS);
            decoder.await("arrived", "t");
            prefiller.await("released", "t");
            assertThat(decoder.wrongRows("t", PROMPT_TOKENS, firstToken)).isZero();
        }
    }

    /** The pages before the window are told as one that holds nothing, and are neither granted nor written. */
    @ParameterizedTest(name = "window of {0} tokens over {1}, {2} tokens from {3}, checksums {4}")
    @CsvSource({"16, tcp, 53, 0, off", "9, shm, 53, 0, full", "20, tcp, 64, 16, full", "64, tcp, 53, 0, full"})
    void shouldSendOfAWindowedGroupWhatTheWindowTouches(
            int window, String transport, int promptTokens, int firstToken, String checksums) {
        Map<String, Object> options = Map.of("transports", List.of(transport), "pageChecksum", checksums);
        List<Group> groups = List.of(
                new Group("HND", 4, 16, 29),
                new Group("HND", 2, 8, 31, window),
                new Group("NHD", 2, 8, 31, window + 3));
        try (GroupedEngine prefiller = new GroupedEngine("prefiller", groups, options);
                GroupedEngine decoder = new GroupedEngine("decoder", groups, options)) {
            decoder.fetch("t", prefiller, promptTokens, firstToken);
            prefiller.compute("t", promptTokens);
            decoder.await("arrived", "t");
            prefiller.await("released", "t");
            assertThat(decoder.wrongRows("t", promptTokens, firstToken)).isZero();
        }
    }

    @Test
    void shouldNameTheGroupInWhichTheSidesDiffer() {
        List<Group> other = List.of(DECODER.getFirst(), new Group("NHD", 4, 16, 19));
        try (GroupedEngine prefiller = new GroupedEngine("prefiller", PREFILLER.subList(0, 2), Map.of());
                GroupedEngine decoder = new GroupedEngine("decoder", other, Map.of())) {
            decoder.fetch("t", prefiller, PROMPT_TOKENS, 0);
            assertThat(decoder.await("failed", "t").get("reason").toString())
                    .contains("the prefiller's kvHeadCount of KV group 1 is 2, the decoder's is 4");
        }
    }
}
