package io.kvmessenger.messenger.pages;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import java.util.List;

/** Validates the page lists of a request, one for each group of a geometry. Pure functions. */
public final class PageLists {
    private PageLists() {}

    /**
     * Why page lists cannot hold tokens {@code [firstToken, promptTokens)}, as the end of a sentence; empty when they
     * can.
     *
     * @param mayBeEmpty whether a request for no pages is valid, as one for context rows alone
     */
    public static String misfit(
            KvGeometry geometry, List<int[]> pages, int firstToken, int promptTokens, boolean mayBeEmpty) {
        if (pages.size() != geometry.groups().size()) {
            return pages.size() + " page lists, expected one for each of "
                    + geometry.groups().size() + " KV groups";
        }
        if (promptTokens < 1 || firstToken < 0) {
            return count(pages) + " pages for tokens " + firstToken + " to " + promptTokens;
        }
        for (int index = 0; index < pages.size(); index++) {
            KvGroup group = geometry.groups().get(index);
            int expected = group.pagesFor(firstToken, promptTokens);
            int found = pages.get(index).length;
            boolean fits = firstToken % group.pageTokens() == 0
                    && found == expected
                    && (expected > 0 || (expected == 0 && mayBeEmpty));
            if (!fits) {
                return found + " pages for tokens " + firstToken + " to " + promptTokens + ", which need " + expected
                        + (pages.size() == 1 ? "" : " in KV group " + index);
            }
        }
        return "";
    }

    /** Names the first page that lies outside its group's memory, as the end of a sentence; empty when none does. */
    public static String outside(KvGeometry geometry, List<int[]> pages) {
        for (int index = 0; index < pages.size(); index++) {
            int pageCount = geometry.groups().get(index).pageCount();
            for (int page : pages.get(index)) {
                if (page < 0 || page >= pageCount) {
                    return "page " + page + " of " + pageCount + (pages.size() == 1 ? "" : " in KV group " + index);
                }
            }
        }
        return "";
    }

    private static int count(List<int[]> pages) {
        return pages.stream().mapToInt(list -> list.length).sum();
    }
}
