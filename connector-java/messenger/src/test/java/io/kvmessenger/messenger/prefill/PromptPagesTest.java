package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Where a prompt's pages lie, told in parts. */
class PromptPagesTest {
    private final PromptPages pages =
            new PromptPages(new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, 4, PageLayout.HND, 1, 1 << 17));

    private void add(int firstPage, int[] indices) {
        pages.add(new ChunkPages(firstPage, indices));
    }

    /** Copying all of them for each chunk would be quadratic: a quarter of a GB for a million tokens. */
    @Test
    void shouldCopyALongPromptsPagesAFewTimesOnly() {
        int chunks = 1954;
        Set<int[]> arrays = Collections.newSetFromMap(new IdentityHashMap<>());
        for (int chunk = 0; chunk < chunks; chunk++) {
            int from = 32 * chunk;
            add(from, IntStream.range(from, from + 32).map(k -> k + 5).toArray());
            arrays.add(pages.byPosition());
        }
        assertThat(arrays).hasSizeLessThan(15);
        assertThat(Arrays.copyOf(pages.byPosition(), pages.end()))
                .isEqualTo(IntStream.range(5, 32 * chunks + 5).toArray());
    }

    @Test
    void shouldKnowNoPageOutsideOfWhatWasGiven() {
        add(3, new int[] {7, 8});

        assertThat(pages.first()).isEqualTo(3);
        assertThat(pages.end()).isEqualTo(5);
        for (int position = 0; position < pages.byPosition().length; position++) {
            int page = pages.byPosition()[position];
            assertThat(page).isEqualTo(position == 3 ? 7 : position == 4 ? 8 : -1);
        }
    }

    @Test
    void shouldTakeNoPageOutsideOfThePool() {
        int pageCount = 1 << 17;

        assertThat(pages.misfit(new ChunkPages(0, new int[] {0, pageCount - 1})))
                .isEmpty();
        assertThat(pages.misfit(new ChunkPages(0, new int[] {0, pageCount})))
                .isEqualTo("names page 131072 at position 1, expected one of 131072");
        assertThat(pages.misfit(new ChunkPages(0, new int[] {-1}))).contains("names page -1 at position 0");
    }

    @Test
    void shouldLeaveWhatASubmittedWriteReadsAsItIs() {
        add(0, new int[] {4, 9});
        int[] submitted = pages.byPosition();
        for (int position = 1; position < 500; position++) {
            add(position, new int[] {position == 1 ? 9 : 10 + position, 11 + position});
        }
        assertThat(submitted).startsWith(4, 9);
    }

    /** An engine may say with the last chunk only which slot a state is in; a page of tokens it must name when it fills it. */
    @Test
    void shouldNeedTheSlotOfAStateWithItsLastTokenOnly() {
        PromptPages state = new PromptPages(
                new KvGroup(GroupKind.STATE, "int8", 1, KvGroup.STATE_PAGE_TOKENS, PageLayout.HND, 1, 8));
        ChunkPages none = new ChunkPages(0, new int[0]);

        assertThat(state.gap(chunk(0, 8, none), none, 0)).isEmpty();
        assertThat(state.gap(chunk(8, 10, none), none, 8))
                .isEqualTo("has pages for 0 positions, expected 1 for its 10 tokens");
        assertThat(pages.gap(chunk(0, 7, new ChunkPages(0, new int[] {5})), new ChunkPages(0, new int[] {5}), 0))
                .isEqualTo("has pages for 1 positions, expected 2 for its 7 tokens");

        ChunkPages slot = new ChunkPages(0, new int[] {3});
        assertThat(state.gap(chunk(8, 10, slot), slot, 8)).isEmpty();
        state.add(slot);
        assertThat(state.completeWith(9, 10)).isZero();
        assertThat(state.completeWith(10, 10)).isEqualTo(1);
        assertThat(state.byPosition()[0]).isEqualTo(3);
    }

    private static EngineCommand.Chunk chunk(int firstToken, int endToken, ChunkPages reported) {
        return new EngineCommand.Chunk("r", "t", 10, 0, firstToken, endToken, List.of(reported), "");
    }
}
