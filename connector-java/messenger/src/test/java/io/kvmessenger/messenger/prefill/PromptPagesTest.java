package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Where a prompt's pages lie, told in parts. */
class PromptPagesTest {
    private final PromptPages pages = new PromptPages();

    /** Copying all of them for each chunk would be quadratic: a quarter of a GB for a million tokens. */
    @Test
    void shouldCopyALongPromptsPagesAFewTimesOnly() {
        int chunks = 1954;
        Set<int[]> arrays = Collections.newSetFromMap(new IdentityHashMap<>());
        for (int chunk = 0; chunk < chunks; chunk++) {
            int from = 32 * chunk;
            pages.add(from, IntStream.range(from, from + 32).map(k -> k + 5).toArray());
            arrays.add(pages.byPosition());
        }
        assertThat(arrays).hasSizeLessThan(15);
        assertThat(Arrays.copyOf(pages.byPosition(), pages.end()))
                .isEqualTo(IntStream.range(5, 32 * chunks + 5).toArray());
    }

    @Test
    void shouldKnowNoPageOutsideOfWhatWasTold() {
        pages.add(3, new int[] {7, 8});

        assertThat(pages.first()).isEqualTo(3);
        assertThat(pages.end()).isEqualTo(5);
        for (int position = 0; position < pages.byPosition().length; position++) {
            int page = pages.byPosition()[position];
            assertThat(page).isEqualTo(position == 3 ? 7 : position == 4 ? 8 : -1);
        }
    }

    @Test
    void shouldLeaveWhatASubmittedWriteReadsAsItIs() {
        pages.add(0, new int[] {4, 9});
        int[] submitted = pages.byPosition();
        for (int position = 1; position < 500; position++) {
            pages.add(position, new int[] {position == 1 ? 9 : 10 + position, 11 + position});
        }
        assertThat(submitted).startsWith(4, 9);
    }
}
