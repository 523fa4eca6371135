package io.kvmessenger.benchmarks;

import java.util.random.RandomGenerator;
import java.util.random.RandomGeneratorFactory;

/**
 * Selects the pages of each round at random: a random permutation of the whole pool is used up, then shuffled anew, so
 * that as few rounds as possible touch all of it. Equal seeds give equal pages, in any process.
 *
 * <p>For one thread.
 */
final class PageDraw {
    private final RandomGenerator random;
    private final int[] order;
    private final int pageCount;
    private int next;

    PageDraw(int poolPages, int pageCount, long seed) {
        random = RandomGeneratorFactory.of("L64X128MixRandom").create(seed);
        order = new int[poolPages];
        for (int i = 0; i < poolPages; i++) {
            order[i] = i;
        }
        this.pageCount = pageCount;
        shuffle();
    }

    /** The pages of the next round, all different. */
    int[] draw() {
        if (next >= order.length) {
            shuffle();
        }
        int[] pages = new int[pageCount];
        int from = Math.min(next, order.length - pageCount);
        System.arraycopy(order, from, pages, 0, pageCount);
        next += pageCount;
        return pages;
    }

    private void shuffle() {
        for (int i = order.length - 1; i > 0; i--) {
            int j = random.nextInt(i + 1);
            int page = order[i];
            order[i] = order[j];
            order[j] = page;
        }
        next = 0;
    }
}
