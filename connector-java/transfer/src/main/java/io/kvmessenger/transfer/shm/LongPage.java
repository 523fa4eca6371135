package io.kvmessenger.transfer.shm;

import io.kvmessenger.transfer.samehost.MappedFile;
import io.kvmessenger.transfer.samehost.RunCopier;
import java.lang.foreign.MemorySegment;

/**
 * The page under way that is too long for one duty cycle: copied a piece at a time, so that other peers, and shorter
 * writes to the same one, do not wait for all of it.
 *
 * <p>Worker only. At most one page is under way. It pushes no immediate: the caller does, behind the last piece.
 */
final class LongPage {
    /** A longer page is copied in pieces of this length: some 100 microseconds. */
    static final long PIECE_BYTES = 1 << 20;

    private final RunCopier copier;
    private MemorySegment source;
    private MappedFile target;
    private long sourceOffsetBytes;
    private long targetOffsetBytes;
    private long leftBytes;
    private int imm;
    private long postId;

    LongPage(RunCopier copier) {
        this.copier = copier;
    }

    /** Begins a page; nothing is copied yet. The offsets lie within both. */
    void begin(MemorySegment from, long fromOffset, MappedFile to, long toOffset, long lengthBytes) {
        source = from;
        sourceOffsetBytes = fromOffset;
        target = to;
        targetOffsetBytes = toOffset;
        leftBytes = lengthBytes;
    }

    /** What is to be pushed when it has been copied. */
    void owe(int immOfPage, long postIdOfPage) {
        imm = immOfPage;
        postId = postIdOfPage;
    }

    /** Whether a page was begun and not {@link #end}ed. */
    boolean isUnderWay() {
        return target != null;
    }

    boolean isCopied() {
        return leftBytes == 0;
    }

    /** Copies the next piece, if any is left. */
    void advance() {
        long pieceBytes = Math.min(leftBytes, PIECE_BYTES);
        if (pieceBytes > 0) {
            target.mapAhead(targetOffsetBytes, pieceBytes);
            copier.add(source, sourceOffsetBytes, target.memory(), targetOffsetBytes, pieceBytes);
            copier.finish();
            sourceOffsetBytes += pieceBytes;
            targetOffsetBytes += pieceBytes;
            leftBytes -= pieceBytes;
        }
    }

    int imm() {
        return imm;
    }

    long postId() {
        return postId;
    }

    /** Forgets the page: it has been pushed, or its path is lost. */
    void end() {
        source = null;
        target = null;
        leftBytes = 0;
    }
}
