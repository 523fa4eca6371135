package io.kvmessenger.kvlayout;

/**
 * Layers with pages of the same shape that are allocated together: a request has one page list for each group. A value.
 *
 * @param dtype the engine's name of the element type
 * @param pageTokens tokens in a page
 * @param kvHeadCount KV heads of each layer, over all ranks; 1 for a latent layout; for a state that is not latent, the
 *     number of ranks, each of which holds a part that only its counterpart on the other side can read
 * @param pageCount number of pages on every rank
 * @param pageShares among how many ranks, which compute the same, the pages are divided: page {@code p} of a page list
 *     is page {@code p / pageShares} of rank {@code p % pageShares}; 1 = each rank has all pages of its own
 */
public record KvGroup(
        GroupKind kind,
        String dtype,
        int elementBytes,
        int pageTokens,
        PageLayout layout,
        int kvHeadCount,
        int pageCount,
        int pageShares) {
    /** Nominal number of tokens in a page of state: more than any prompt has. */
    public static final int STATE_PAGE_TOKENS = 1 << 30;

    /** A group of which each rank has all pages. */
    public KvGroup(
            GroupKind kind,
            String dtype,
            int elementBytes,
            int pageTokens,
            PageLayout layout,
            int kvHeadCount,
            int pageCount) {
        this(kind, dtype, elementBytes, pageTokens, layout, kvHeadCount, pageCount, 1);
    }

    public KvGroup {
        if (dtype.isEmpty()) {
            throw new IllegalArgumentException("dtype is empty, expected a name");
        }
        requirePositive("elementBytes", elementBytes);
        requirePositive("pageTokens", pageTokens);
        requirePositive("kvHeadCount", kvHeadCount);
        requirePositive("pageCount", pageCount);
        requirePositive("pageShares", pageShares);
        boolean state = kind instanceof GroupKind.State;
        if (state != (pageTokens == STATE_PAGE_TOKENS) || (state && layout instanceof PageLayout.Nhd)) {
            throw new IllegalArgumentException("a KV group of kind \"" + kind.name() + "\" has pages of " + pageTokens
                    + " tokens with layout " + layout.name() + ", expected " + STATE_PAGE_TOKENS
                    + " with HND or LATENT for state, and no other kind with so many");
        }
        if (layout instanceof PageLayout.Latent && kvHeadCount != 1) {
            throw new IllegalArgumentException(
                    "kvHeadCount is " + kvHeadCount + " with layout LATENT, expected 1: latent KV has no heads");
        }
        boolean divisible = layout instanceof PageLayout.Latent && kind instanceof GroupKind.FullAttention;
        if (pageShares > 1 && (!divisible || pageShares > Integer.MAX_VALUE / pageCount)) {
            throw new IllegalArgumentException("pageShares is " + pageShares + " in a KV group of kind \"" + kind.name()
                    + "\" with layout " + layout.name() + " and " + pageCount + " pages, expected 1, or a group of full"
                    + " attention with layout LATENT: other pages are not divided among ranks");
        }
    }

    private static void requirePositive(String name, int value) {
        if (value < 1) {
            throw new IllegalArgumentException(name + " is " + value + ", expected at least 1");
        }
    }

    /** Whether each page is on one of several ranks that compute the same. */
    public boolean isDivided() {
        return pageShares > 1;
    }

    /** Number of pages on all ranks together: page lists name one of them. */
    public int listedPageCount() {
        return pageCount * pageShares;
    }

    /** Number of pages that the first {@code tokenCount} tokens occupy, the last one possibly in part. */
    public int pagesOf(int tokenCount) {
        return Math.ceilDiv(tokenCount, pageTokens);
    }

    /**
     * First token of the pages that are transferred for tokens {@code [firstToken, tokenCount)}. {@code firstToken}
     * must be the first of a page; pages without any token from {@link GroupKind#firstNeeded} on are skipped.
     */
    public int firstTokenSent(int firstToken, int tokenCount) {
        return Math.max(firstToken, kind.firstNeeded(tokenCount)) / pageTokens * pageTokens;
    }

    /** Number of pages that are transferred of tokens {@code [firstToken, tokenCount)}; see {@link #firstTokenSent}. */
    public int pagesFor(int firstToken, int tokenCount) {
        return pagesOf(tokenCount) - firstTokenSent(firstToken, tokenCount) / pageTokens;
    }
}
