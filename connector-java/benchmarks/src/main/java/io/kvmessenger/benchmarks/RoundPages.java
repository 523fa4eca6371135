package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.WindowRanges;

/**
 * The pages of one round. Both processes draw the same.
 *
 * @param number 1 for the first round
 */
record RoundPages(int number, int[] source, int[] target, int pageBytes) {
    long sourceOffset(int i) {
        return (long) source[i] * pageBytes;
    }

    long targetOffset(int i) {
        return (long) target[i] * pageBytes;
    }

    /** Where the whole round's writes may land. */
    WindowRanges targetRanges() {
        long[] offsets = new long[target.length];
        for (int i = 0; i < offsets.length; i++) {
            offsets[i] = targetOffset(i);
        }
        return WindowRanges.ofEqual(offsets, pageBytes);
    }

    /** Where the write of page {@code i} may land. */
    WindowRanges targetRange(int i) {
        return WindowRanges.ofEqual(new long[] {targetOffset(i)}, pageBytes);
    }

    /** Draws the rounds' pages, in order. */
    static final class Dealer {
        /** Makes the target's draw independent of the source's. */
        private static final long TARGET_SALT = 0x5eed;

        private final PageDraw sources;
        private final PageDraw targets;
        private final int pageBytes;
        private int number;

        Dealer(KvPerfOptions options) {
            sources = new PageDraw(options.poolPages(), options.pageCount(), options.seed());
            targets = new PageDraw(options.poolPages(), options.pageCount(), options.seed() ^ TARGET_SALT);
            pageBytes = options.pageBytes();
        }

        RoundPages next() {
            return new RoundPages(++number, sources.draw(), targets.draw(), pageBytes);
        }
    }
}
