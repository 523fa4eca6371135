package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.IoVector;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** A list of byte ranges that gathering or scattering calls process piecewise. Worker only. */
final class VectorRun {
    private final MemorySegment vectors;
    /** By index of the first range: {@link #vectors} from there on, created when first used. */
    private final MemorySegment[] suffixes;

    private int next;
    private int end;
    private long leftBytes;
    private long lastEndAddress;

    VectorRun(Arena arena, int countMax) {
        vectors = arena.allocate(countMax * IoVector.SIZE_BYTES, 8);
        suffixes = new MemorySegment[countMax];
    }

    void clear() {
        next = 0;
        end = 0;
        leftBytes = 0;
        lastEndAddress = 0;
    }

    /** Appends a range; one that continues the last is merged with it. */
    void add(long address, long lengthBytes) {
        if (lengthBytes == 0) {
            return;
        }
        if (end > 0 && address == lastEndAddress) {
            IoVector.set(
                    vectors,
                    end - 1,
                    IoVector.address(vectors, end - 1),
                    IoVector.lengthBytes(vectors, end - 1) + lengthBytes);
        } else {
            IoVector.set(vectors, end++, address, lengthBytes);
        }
        lastEndAddress = address + lengthBytes;
        leftBytes += lengthBytes;
    }

    /** Removes the bytes that a call has processed. */
    void advance(long doneBytes) {
        leftBytes -= doneBytes;
        long left = doneBytes;
        while (left > 0) {
            long lengthBytes = IoVector.lengthBytes(vectors, next);
            if (left < lengthBytes) {
                IoVector.set(vectors, next, IoVector.address(vectors, next) + left, lengthBytes - left);
                return;
            }
            left -= lengthBytes;
            next++;
        }
    }

    /** The vectors of the unfinished ranges, of which there are {@link #count}; there must be one. */
    MemorySegment unfinished() {
        MemorySegment suffix = suffixes[next];
        if (suffix == null) {
            suffix = vectors.asSlice(next * IoVector.SIZE_BYTES);
            suffixes[next] = suffix;
        }
        return suffix;
    }

    int count() {
        return end - next;
    }

    /** Address of the unfinished part of the first range; there must be one. */
    long firstAddress() {
        return IoVector.address(vectors, next);
    }

    long firstBytes() {
        return IoVector.lengthBytes(vectors, next);
    }

    long leftBytes() {
        return leftBytes;
    }
}
