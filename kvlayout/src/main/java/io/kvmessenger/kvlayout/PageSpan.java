package io.kvmessenger.kvlayout;

/**
 * A half-open range of a request's pages, and the arithmetic from tokens to it. Page {@code k} of a request holds its
 * tokens {@code k * pageTokens} up to {@code (k + 1) * pageTokens - 1}; these are positions in the request's page list,
 * not page indices.
 */
public record PageSpan(int fromPage, int toPage) {
    public PageSpan {
        if (fromPage < 0 || toPage < fromPage) {
            throw new IllegalArgumentException(
                    "page span is [" + fromPage + ", " + toPage + "), expected 0 <= from <= to");
        }
    }

    public int count() {
        return toPage - fromPage;
    }

    public boolean isEmpty() {
        return toPage == fromPage;
    }

    /** The pages that tokens {@code [0, tokenCount)} fill completely. */
    public static PageSpan filledBy(int tokenCount, int pageTokens) {
        requireTokens(0, tokenCount, pageTokens);
        return new PageSpan(0, tokenCount / pageTokens);
    }

    /** The pages that hold at least one token of {@code [fromToken, toToken)}. */
    public static PageSpan touchedBy(int fromToken, int toToken, int pageTokens) {
        requireTokens(fromToken, toToken, pageTokens);
        int fromPage = fromToken / pageTokens;
        return new PageSpan(fromPage, fromToken == toToken ? fromPage : Math.ceilDivExact(toToken, pageTokens));
    }

    /**
     * The pages to send with a chunk: those it completes; a page that it only begins goes with the chunk that fills it,
     * or with the last one. Over a request's successive chunks every page is in exactly one span.
     */
    public static PageSpan sentWith(int fromToken, int toToken, boolean lastChunk, int pageTokens) {
        requireTokens(fromToken, toToken, pageTokens);
        int toPage = lastChunk ? Math.ceilDivExact(toToken, pageTokens) : toToken / pageTokens;
        return new PageSpan(fromToken / pageTokens, toPage);
    }

    /** How many pages hold {@code tokenCount} tokens. */
    public static int pagesFor(int tokenCount, int pageTokens) {
        return touchedBy(0, tokenCount, pageTokens).toPage();
    }

    private static void requireTokens(int fromToken, int toToken, int pageTokens) {
        if (pageTokens < 1) {
            throw new IllegalArgumentException("pageTokens is " + pageTokens + ", expected at least 1");
        }
        if (fromToken < 0 || toToken < fromToken) {
            throw new IllegalArgumentException(
                    "token range is [" + fromToken + ", " + toToken + "), expected 0 <= from <= to");
        }
    }
}
