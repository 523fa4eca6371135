package io.kvmessenger.kvlayout;

/**
 * Where a piece's bytes lie in the pages of one side: page parts of equal token counts, the first at {@code byteInPage},
 * each {@code strideBytes} after the one before.
 *
 * @param countPerPage parts in a page; 1 when the piece takes its bytes from a page at once
 */
public record PageParts(int byteInPage, int countPerPage, int strideBytes) {
    /** The page as its own only part. */
    static PageParts whole(int byteInPage) {
        return new PageParts(byteInPage, 1, 0);
    }
}
