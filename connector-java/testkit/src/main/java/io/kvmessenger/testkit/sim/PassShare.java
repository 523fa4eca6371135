package io.kvmessenger.testkit.sim;

import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * What a forward pass computes of one prompt: tokens {@code [firstToken, endToken)} into its pages. It goes on with the
 * pages that other prompts share when the prompt itself has given its own back.
 */
final class PassShare {
    private final String transferId;
    private final int[] pages;
    private final int firstToken;
    private final int endToken;
    private final int pageTokens;
    private boolean givenUp;
    /** When it was given up, by position: null for a page that is not shared, and nothing for those behind. */
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

    /** A later pass may have filled pages up that this one began, and taken them in: they are shared too. */
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
