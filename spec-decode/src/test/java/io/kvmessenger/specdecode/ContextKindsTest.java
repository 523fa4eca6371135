package io.kvmessenger.specdecode;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.specdecode.ContextKind.Sending;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class ContextKindsTest {
    private static final ContextKind TOKEN = new ContextKind("token", 8, Sending.ALWAYS);
    private static final ContextKind LOGITS = new ContextKind("logits", 2048, Sending.ON_REQUEST);
    private static final ContextKind HIDDEN = new ContextKind("hidden", 512, Sending.ON_REQUEST);
    private static final ContextKinds KINDS = new ContextKinds(List.of(LOGITS, TOKEN, HIDDEN));

    @Test
    void shouldChooseWhatAlwaysGoesAndWhatIsAskedFor() {
        assertThat(KINDS.chosen(List.of()).positions()).containsExactly(1);
        assertThat(KINDS.chosen(List.of("hidden")).positions()).containsExactly(1, 2);
        assertThat(KINDS.chosen(List.of("hidden", "logits", "token", "hidden")).positions())
                .containsExactly(0, 1, 2);
        assertThat(KINDS.chosen(List.of("logits")).count()).isEqualTo(2);
        assertThat(ContextKinds.NONE.chosen(List.of())).isEqualTo(ContextChoice.NONE);
    }

    /** A prefiller chooses by what is left of the choice when it has travelled. */
    @Test
    void shouldChooseTheSameOnTheOtherSide() {
        for (int asked = 0; asked < 1 << 3; asked++) {
            List<String> names = namesOf(asked);
            ContextChoice choice = KINDS.chosen(names);
            assertThat(KINDS.chosen(KINDS.requestedBits(choice))).isEqualTo(choice);
            assertThat(KINDS.requestedNames(choice))
                    .containsExactlyElementsOf(
                            names.stream().filter(name -> !name.equals("token")).toList());
        }
    }

    private static List<String> namesOf(int bits) {
        return IntStream.range(0, 3)
                .filter(position -> (bits >> position & 1) != 0)
                .mapToObj(position -> KINDS.kinds().get(position).name())
                .toList();
    }

    @Test
    void shouldKnowWhetherEveryTransferHasRows() {
        assertThat(KINDS.anyAlways()).isTrue();
        ContextKinds onRequest = new ContextKinds(List.of(LOGITS, HIDDEN));
        assertThat(onRequest.anyAlways()).isFalse();
        assertThat(onRequest.chosen(0).isEmpty()).isTrue();
        assertThat(onRequest.chosen(2).positions()).containsExactly(1);
    }

    @Test
    void shouldRefuseKindsThatAreNotThere() {
        assertThatThrownBy(() -> KINDS.chosen(List.of("embedding")))
                .hasMessage(
                        "context row embedding is asked for, expected one of [logits of 2048 bytes on request, token of"
                                + " 8 bytes, hidden of 512 bytes on request]: ask for kinds that the messenger was opened with");
        assertThatThrownBy(() -> KINDS.chosen(1 << 3)).hasMessageStartingWith("context row 3 is asked for");
        assertThatThrownBy(() -> KINDS.chosen(Integer.MIN_VALUE)).hasMessageStartingWith("context row 31 is asked for");
        assertThatThrownBy(() -> ContextKinds.NONE.chosen(1)).isInstanceOf(IllegalArgumentException.class);
    }

    @Test
    void shouldRefuseKindsThatCannotBeNamed() {
        assertThatThrownBy(() -> new ContextKinds(List.of(TOKEN, TOKEN))).hasMessageContaining("each name once");
        List<ContextKind> many = IntStream.rangeClosed(0, ContextKinds.COUNT_MAX)
                .mapToObj(i -> new ContextKind("kind" + i, 1, Sending.ALWAYS))
                .toList();
        assertThatThrownBy(() -> new ContextKinds(many)).hasMessageContaining("17 kinds of context rows");
        assertThat(new ContextKinds(many.subList(0, ContextKinds.COUNT_MAX))
                        .chosen(0)
                        .count())
                .isEqualTo(ContextKinds.COUNT_MAX);
        assertThatThrownBy(() -> new ContextKind("", 1, Sending.ALWAYS)).hasMessageContaining("is empty");
        assertThatThrownBy(() -> new ContextKind("token", 0, Sending.ALWAYS))
                .hasMessage("context row token has rows of 0 bytes, expected at least 1");
    }
}
