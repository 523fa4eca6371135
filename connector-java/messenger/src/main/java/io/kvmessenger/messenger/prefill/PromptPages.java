package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import java.util.Arrays;
import java.util.BitSet;

/**
 * The prefiller's pages of a group that hold a prompt, by position: page k holds the tokens from
 * {@code k * pageTokens}. Pages before the first reported position are the decoder's own and are never read.
 *
 * <p>State only, owned by the messenger's thread. Submitted writes read their array on other threads: known pages never
 * change, and the array grows by copying.
 */
final class PromptPages {
    private static final int UNKNOWN = -1;

    private static final int CAPACITY_MIN = 64;

    private final KvGroup group;
    /** Undefined from {@link #end} on, where no write reads. */
    private int[] pages = new int[0];
    /** The first position reported; 0 before any. */
    private int first;
    /** The position after the last known one. */
    private int end;

    PromptPages(KvGroup group) {
        this.group = group;
    }

    int pageTokens() {
        return group.pageTokens();
    }

    /** The first position that a grant asks for, in pages of this side. */
    int firstPageFor(PageGrant grant) {
        return group.firstTokenSent(grant.firstToken(), grant.promptTokens()) / group.pageTokens();
    }

    /**
     * Number of pages complete with the prompt's first {@code tokens} tokens: full ones, and the last one once all
     * tokens are in place.
     */
    int completeWith(int tokens, int promptTokens) {
        return tokens >= promptTokens ? group.pagesOf(promptTokens) : tokens / group.pageTokens();
    }

    /** Why these pages contradict the known ones; empty when they do not. */
    String misfit(ChunkPages chunk) {
        int firstPage = chunk.firstPage();
        int[] reported = chunk.indices();
        int pageCount = group.listedPageCount();
        int next = end;
        if (reported.length > 0 && next > 0 && (firstPage < first || firstPage > next)) {
            return "names pages from position " + firstPage + " on, expected a position from " + first + " to " + next;
        }
        for (int i = 0; i < reported.length; i++) {
            int position = firstPage + i;
            if (reported[i] < 0 || reported[i] >= pageCount) {
                return "names page " + reported[i] + " at position " + position + ", expected one of " + pageCount;
            }
            if (position < next && pages[position] != reported[i]) {
                return "names page " + reported[i] + " at position " + position + ", expected " + pages[position]
                        + " as before";
            }
        }
        return "";
    }

    /**
     * Why a chunk leaves a gap after the known tokens or has too few pages; empty when it does not.
     *
     * @param reportedTokens tokens that were reported as computed before
     */
    String gap(EngineCommand.Chunk chunk, ChunkPages reported, int reportedTokens) {
        int firstPage = end == 0 ? reported.firstPage() : first;
        int follows = Math.max(reportedTokens, Math.min(firstPage * group.pageTokens(), chunk.promptTokens()));
        if (chunk.firstToken() > follows) {
            return "goes on at token " + chunk.firstToken() + ", expected at most " + follows
                    + ", where it was told to have got to";
        }
        int endPage =
                Math.max(end, reported.indices().length == 0 ? 0 : reported.firstPage() + reported.indices().length);
        int neededPages = neededBy(chunk);
        return endPage < neededPages && neededPages > firstPage
                ? "has pages for " + endPage + " positions, expected " + neededPages + " for its " + chunk.endToken()
                        + " tokens"
                : "";
    }

    /** Pages that a chunk must have named, a partly filled one included; a state cache has none before its end. */
    private int neededBy(EngineCommand.Chunk chunk) {
        return group.kind() instanceof GroupKind.State
                ? completeWith(chunk.endToken(), chunk.promptTokens())
                : group.pagesOf(chunk.endToken());
    }

    /** Adds pages that fit; known ones stay unchanged. */
    void add(ChunkPages chunk) {
        int firstPage = chunk.firstPage();
        int[] reported = chunk.indices();
        if (reported.length == 0) {
            return;
        }
        int had = end;
        if (had == 0) {
            first = firstPage;
        }
        int from = Math.max(had, firstPage);
        int to = firstPage + reported.length;
        if (to > had) {
            grow(to);
            System.arraycopy(reported, from - firstPage, pages, from, to - from);
            end = to;
        }
    }

    private void grow(int capacity) {
        int had = pages.length;
        if (capacity > had) {
            pages = Arrays.copyOf(pages, Math.max(capacity, Math.max(CAPACITY_MIN, 2 * had)));
            Arrays.fill(pages, had, pages.length, UNKNOWN);
        }
    }

    /** Whether each page is on one of several ranks. */
    boolean isDivided() {
        return group.isDivided();
    }

    /** Whether all pages of the prompt are known. */
    boolean complete(int promptTokens) {
        return end >= group.pagesOf(promptTokens);
    }

    /** Which of the pages {@code [from, to)} are on the ranks of a share, counted from {@code from}. */
    BitSet positionsOf(int share, int from, int to) {
        BitSet positions = new BitSet();
        for (int position = from; position < to; position++) {
            positions.set(position - from, pages[position] % group.pageShares() == share);
        }
        return positions;
    }

    /** The page of its rank at a position, of divided pages. */
    int ownPage(int position) {
        return pages[position] / group.pageShares();
    }

    /** Pages by position, defined up to {@link #end}. */
    int[] byPosition() {
        return pages;
    }

    int first() {
        return first;
    }

    /** Number of known pages. */
    int count() {
        return end - first;
    }

    /** The position after the last known one. */
    int end() {
        return end;
    }
}
