package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.ChunkSums;
import io.kvmessenger.messenger.port.ChunkTimeline;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What is kept of a prompt's chunks: sums that are true of all, and few of them layer by layer. */
class ChunkTimelinesTest {
    private static final int CHUNK_TOKENS = 512;
    private static final int CHUNK_PAGES = 32;
    private static final int KEPT_MAX = ChunkTimelines.FIRST_KEPT_MAX + ChunkTimelines.LAST_KEPT_MAX;

    private final ChunkTimelines chunks = new ChunkTimelines();

    private ChunkTimeline begin(int index, int layerCount, long nowNs) {
        ChunkTimeline chunk = new ChunkTimeline(CHUNK_TOKENS * index, CHUNK_TOKENS * (index + 1), layerCount, nowNs);
        chunks.begin(chunk, CHUNK_PAGES * (index + 1));
        return chunk;
    }

    @Test
    void shouldKeepTheFirstAndTheLastOfAMillionTokensAndSumAllOfThem() {
        long count = 1954;
        int layers = 126;
        long nowNs = 1;
        for (int index = 0; index < count; index++) {
            ChunkTimeline chunk = begin(index, layers, nowNs);
            for (int layer = 0; layer < layers; layer++) {
                chunk.onReadableBefore(layer + 1, ++nowNs);
                chunks.onSubmitted(layer, CHUNK_PAGES * (index + 1), nowNs);
                chunks.onLeft(layer, CHUNK_PAGES * (index + 1), ++nowNs);
            }
            chunks.onComputed(chunk, ++nowNs);
        }
        assertThat(chunks.sums()).isEqualTo(new ChunkSums(1954, 2, nowNs, count * layers, count * layers));
        assertThat(chunks.kept())
                .extracting(chunk -> chunk.firstToken() / CHUNK_TOKENS)
                .containsExactly(0, 1, 2, 3, 4, 5, 6, 7, 1946, 1947, 1948, 1949, 1950, 1951, 1952, 1953);
        assertThat(chunks.kept())
                .allSatisfy(chunk -> assertThat(chunk.leftNs(layers - 1)).isEqualTo(chunk.forwardEndNs() - 1))
                .allSatisfy(chunk -> assertThat(chunk.submittedNs(0)).isEqualTo(chunk.forwardStartNs() + 1));
    }

    /** Walking through all chunks for each write would take hours. */
    @Test
    @Timeout(900)
    void shouldFindTheChunkOfAWriteWithoutWalkingThroughThoseBefore() {
        int count = 1 << 20;
        for (int index = 0; index < count; index++) {
            chunks.onComputed(begin(index, 1, index), index);
            chunks.onLeft(0, CHUNK_PAGES * (index + 1), index);
        }
        assertThat(chunks.sums().layersSent()).isEqualTo(count);
        assertThat(chunks.sums().layersSentEarly()).isZero();
    }

    @Test
    void shouldCountAsEarlyWhatLeftBeforeItsOwnPassWasOver() {
        ChunkTimeline first = begin(0, 2, 10);
        chunks.onLeft(0, CHUNK_PAGES, 11);
        chunks.onComputed(first, 12);
        ChunkTimeline second = begin(1, 2, 13);
        chunks.onLeft(1, CHUNK_PAGES, 14);
        chunks.onLeft(0, 2 * CHUNK_PAGES, 15);
        chunks.onComputed(second, 16);
        chunks.onLeft(1, 2 * CHUNK_PAGES, 17);

        assertThat(chunks.sums()).isEqualTo(new ChunkSums(2, 0, 16, 4, 2));
        assertThat(times(first)).containsExactly(11L, 14L);
        assertThat(times(second)).containsExactly(15L, 17L);
    }

    @Test
    void shouldDistinguishTheChunksOfPassesInFlight() {
        ChunkTimeline first = begin(0, 2, 10);
        ChunkTimeline second = begin(1, 2, 11);
        chunks.onSubmitted(0, CHUNK_PAGES, 12);
        chunks.onLeft(0, CHUNK_PAGES, 13);
        chunks.onComputed(first, 14);
        chunks.onSubmitted(0, 2 * CHUNK_PAGES, 15);
        chunks.onLeft(0, 2 * CHUNK_PAGES, 16);
        chunks.onComputed(second, 17);
        chunks.onLeft(1, 2 * CHUNK_PAGES, 18);

        assertThat(chunks.sums()).isEqualTo(new ChunkSums(2, 12, 17, 4, 2));
        assertThat(times(first)).containsExactly(13L, 18L);
        assertThat(times(second)).containsExactly(16L, 18L);
        assertThat(first.submittedNs(0)).isEqualTo(12);
        assertThat(second.submittedNs(0)).isEqualTo(15);
        assertThat(first.forwardEndNs()).isEqualTo(14);
    }

    @Test
    void shouldSayOfRandomPromptsWhatAListOfAllChunksWouldSay() {
        for (int seed = 0; seed < 200; seed++) {
            assertLikeAListOfAll(new Random(seed));
        }
    }

    /** Passes of any length; layers leave in any order, some at once, some passes later, some never. */
    private static void assertLikeAListOfAll(Random random) {
        ChunkTimelines chunks = new ChunkTimelines();
        List<ChunkTimeline> all = new ArrayList<>();
        List<Integer> endPages = new ArrayList<>();
        int layers = 1 + random.nextInt(4);
        long early = 0;
        long nowNs = 1;
        int endPage = 0;
        int count = 1 + random.nextInt(60);
        for (int index = 0; index < count; index++) {
            endPage += random.nextInt(4); // a short pass completes no page
            endPages.add(endPage);
            ChunkTimeline expected = new ChunkTimeline(index, index + 1, layers, nowNs);
            all.add(expected);
            ChunkTimeline begun = new ChunkTimeline(index, index + 1, layers, nowNs);
            chunks.begin(begun, endPage);
            for (int times = random.nextInt(3 * layers); times > 0; times--) {
                boolean running = times > layers;
                if (!running && expected.forwardEndNs() == 0) {
                    expected.onComputed(++nowNs);
                    chunks.onComputed(begun, nowNs);
                }
                int layer = random.nextInt(layers);
                int toPage = random.nextInt(endPage + 1);
                nowNs++;
                chunks.onLeft(layer, toPage, nowNs);
                for (int chunk = 0; chunk <= index && endPages.get(chunk) <= toPage; chunk++) {
                    boolean now = all.get(chunk).leftNs(layer) == 0;
                    early += now && all.get(chunk).forwardEndNs() == 0 ? 1 : 0;
                    all.get(chunk).onLeft(layer, nowNs);
                }
            }
            if (expected.forwardEndNs() == 0) {
                expected.onComputed(++nowNs);
                chunks.onComputed(begun, nowNs);
            }
        }
        long left = all.stream()
                .flatMap(chunk -> times(chunk).stream())
                .filter(ns -> ns > 0)
                .count();
        assertThat(chunks.sums())
                .isEqualTo(new ChunkSums(count, 0, all.getLast().forwardEndNs(), left, early));
        assertThat(chunks.kept())
                .hasSize(Math.min(count, KEPT_MAX))
                .allSatisfy(kept -> assertThat(times(kept)).isEqualTo(times(all.get(kept.firstToken()))));
    }

    private static List<Long> times(ChunkTimeline chunk) {
        return Stream.iterate(0, layer -> layer + 1)
                .limit(chunk.layerCount())
                .map(chunk::leftNs)
                .toList();
    }
}
