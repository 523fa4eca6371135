package io.kvmessenger.testkit.sim;

import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * What a forward pass computes of one prompt: tokens {@code [firstToken, endToken)} into its pages. After the prompt
 * has given its pages back, it continues with those that other prompts share.
 */
final class PassShare {
    private final String transferId;
    private final int[] pages;
    private final int firstToken;
    private final int endToken;
    private final int pageTokens;
    private boolean givenUp;
    /** The cache entries when it was given up, by position: null for a page that is not shared; may end early. */
    private List<PrefixCache.Entry> entries = List.of();

    PassShare(String transferId, int[] pages, int firstToken, int endToken, int pageTokens) {
        this.transferId = transferId;
        this.pages = pages;
        this.firstToken = firstToken;
        this.endToken = endToken;
        this.pageTokens = pageTokens;
    }

    boolean givenUp() {
        return givenUp;
    }

    /** A later pass may have completed pages that this one began and put them into the cache: they are shared too. */
    void giveUp(List<PrefixCache.Entry> entriesNow) {
        if (!givenUp) {
            givenUp = true;
            entries = new ArrayList<>(entriesNow);
        }
    }

    void compute(ComputedLayers.RankLayer at, MemorySegment memory) {
        if (!givenUp) {
            at.content().compute(memory, transferId, pages, firstToken, endToken);
            return;
        }
        for (int k = firstToken / pageTokens; k < Math.min(entries.size(), Math.ceilDiv(endToken, pageTokens)); k++) {
            if (entries.get(k) != null && entries.get(k).held()) {
                int from = Math.max(firstToken, k * pageTokens);
                at.content().compute(memory, transferId, pages, from, Math.min(endToken, (k + 1) * pageTokens));
            }
        }
    }
}
