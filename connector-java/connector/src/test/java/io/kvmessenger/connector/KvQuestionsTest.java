package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.TransferKey;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A question reaches the engine whole, in events that each fit into the smallest poll. */
class KvQuestionsTest {
    private static final TransferKey TRANSFER = new TransferKey("pull-1", "0".repeat(32));
    /** The longest salt that a frame may have, of a character with the longest escape. */
    private static final String SALT = "\u0001".repeat(1024);

    private final EventQueue events = new EventQueue(new EventQueueTest.CountingTally(new ArrayList<>()), () -> 0);
    private final KvQuestions questions = new KvQuestions(events);

    @ParameterizedTest
    @ValueSource(
            ints = {
                1,
                KvQuestions.EVENT_TOKENS_MAX - 1,
                KvQuestions.EVENT_TOKENS_MAX,
                KvQuestions.EVENT_TOKENS_MAX + 1,
                3 * KvQuestions.EVENT_TOKENS_MAX
            })
    void shouldBringAllTokensInOrder(int count) throws IOException {
        int[] tokens = IntStream.range(0, count)
                .map(place -> Integer.MIN_VALUE + place)
                .toArray();
        questions.ask(TRANSFER, new EngineCommand.Prompt(tokens, SALT, 0));
        List<Integer> brought = new ArrayList<>();
        while (events.hasEvents()) {
            for (Map<String, Object> event : polled()) {
                assertThat(event)
                        .containsEntry("event", "asked")
                        .containsEntry("transfer", TRANSFER.id())
                        .containsEntry("promptDigest", TRANSFER.digest())
                        .containsEntry("cacheSalt", SALT)
                        .containsEntry("tokenCount", count);
                ((List<?>) event.get("tokenIds")).forEach(token -> brought.add(((Number) token).intValue()));
            }
        }
        assertThat(brought).isEqualTo(Arrays.stream(tokens).boxed().toList());
    }

    @SuppressWarnings("unchecked")
    private List<Map<String, Object>> polled() throws IOException {
        byte[] answer = events.drain(EventQueue.POLL_CAPACITY_MIN_BYTES);
        Map<String, Object> json = JSON.std.mapFrom(new String(answer, StandardCharsets.UTF_8));
        return (List<Map<String, Object>>) json.get("events");
    }

    @Test
    void shouldTakeQuestionsAndNoPrompts() {
        assertThat(questions.takesQuestions()).isTrue();
        assertThat(questions.takesPrompts()).isFalse();
        assertThatThrownBy(() -> questions.enqueue(TRANSFER, EngineCommand.Prompt.NONE))
                .isInstanceOf(AssertionError.class);
    }
}
