package io.kvmessenger.kvlayout;

/**
 * Where a piece's bytes lie in the pages of one side: page parts of equal token counts, the first at
 * {@code byteInPage}, each {@code strideBytes} after the previous one.
 *
 * @param countPerPage number of parts in a page; 1 when the piece's bytes are contiguous in a page
 */
public record PageParts(int byteInPage, int countPerPage, int strideBytes) {
    static PageParts whole(int byteInPage) {
        return new PageParts(byteInPage, 1, 0);
    }
}
