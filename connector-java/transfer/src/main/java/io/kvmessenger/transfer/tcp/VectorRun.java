package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.IoVector;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** A run of byte ranges that one gathering or scattering call works off, a piece at a time. Worker only. */
final class VectorRun {
    private final MemorySegment vectors;
    private int next;
    private int end;
    private long leftBytes;
    private long lastEndAddress;

    VectorRun(Arena arena, int countMax) {
        vectors = arena.allocate(countMax * IoVector.SIZE_BYTES, 8);
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

    /** Takes off what a call has done. */
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

    MemorySegment vectors() {
        return vectors;
    }

    /** Index of the first range that is not finished. */
    int next() {
        return next;
    }

    int count() {
        return end - next;
    }

    /** Of the first range that is not finished, what is left; there is one. */
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
