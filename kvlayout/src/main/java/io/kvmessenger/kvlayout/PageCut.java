package io.kvmessenger.kvlayout;

/**
 * Which bytes of a page of one side go into a page of the other, for one rank of each side and one group: a
 * {@link Piece} without ranks and layer. A value.
 */
record PageCut(int partTokens, PageParts source, PageParts target, int lengthBytes) {
    /** The heads of one rank, in pages of a group. */
    record Side(KvGroup group, HeadRange heads) {
        private PageParts parts(int partTokens, int byteInPage, int headRowBytes) {
            int countPerPage = group.pageTokens() / partTokens;
            return countPerPage == 1
                    ? PageParts.whole(byteInPage)
                    : new PageParts(byteInPage, countPerPage, partTokens * heads.count() * headRowBytes);
        }
    }

    static PageCut of(Side from, Side to, int sourcePageBytes) {
        int pageTokens = from.group.pageTokens();
        boolean equalHeads = from.heads.equals(to.heads);
        if (equalHeads && pageTokens == to.group.pageTokens()) {
            return new PageCut(pageTokens, PageParts.whole(0), PageParts.whole(0), sourcePageBytes);
        }
        int headPageBytes = sourcePageBytes / from.heads.count();
        return switch (from.group.layout()) {
            case PageLayout.Hnd() -> headRange(from, to, headPageBytes);
            case PageLayout.Nhd() -> rows(from, to, headPageBytes / pageTokens, equalHeads);
            case PageLayout.Latent() -> rows(from, to, headPageBytes / pageTokens, true);
        };
    }

    /** HND with equal pages: the common heads are one run. */
    private static PageCut headRange(Side from, Side to, int headPageBytes) {
        HeadRange common = from.heads.intersection(to.heads);
        return new PageCut(
                from.group.pageTokens(),
                PageParts.whole((common.from() - from.heads.from()) * headPageBytes),
                PageParts.whole((common.from() - to.heads.from()) * headPageBytes),
                common.count() * headPageBytes);
    }

    /** Tokens first: rows of whole tokens where heads are equal, else the common heads of each token. */
    private static PageCut rows(Side from, Side to, int headRowBytes, boolean equalHeads) {
        HeadRange common = from.heads.intersection(to.heads);
        // The smaller page size divides the other.
        int partTokens = equalHeads ? Math.min(from.group.pageTokens(), to.group.pageTokens()) : 1;
        return new PageCut(
                partTokens,
                from.parts(partTokens, (common.from() - from.heads.from()) * headRowBytes, headRowBytes),
                to.parts(partTokens, (common.from() - to.heads.from()) * headRowBytes, headRowBytes),
                partTokens * common.count() * headRowBytes);
    }
}
