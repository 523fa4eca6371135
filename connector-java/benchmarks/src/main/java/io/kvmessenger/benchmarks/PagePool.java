package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The memory that pages are drawn from: a memfd, like shareable KV memory of an engine. Every word of a page encodes
 * its round, source page and position.
 *
 * <p>For one thread. It is unmapped when the process ends.
 */
final class PagePool {
    private static final long ROUND_FACTOR = 0x9e3779b97f4a7c15L;
    private static final long PAGE_FACTOR = 0xbf58476d1ce4e5b9L;
    private static final long WORD_FACTOR = 0x94d049bb133111ebL;

    private final HostMemory host;
    private final MemorySegment memory;
    private final int pageBytes;

    private PagePool(HostMemory host, int pageBytes) {
        this.host = host;
        memory = host.memory();
        this.pageBytes = pageBytes;
    }

    /** All of its memory is touched here, so that no page fault on this side is measured later. */
    static PagePool allocate(long lengthBytes, int pageBytes) {
        PagePool pool = new PagePool(HostMemory.allocate("kvperf", lengthBytes), pageBytes);
        pool.memory.fill((byte) 0);
        return pool;
    }

    MemorySegment memory() {
        return memory;
    }

    Memory.Host shared() {
        return host.shared();
    }

    private static long firstWord(long round, int sourcePage) {
        return round * ROUND_FACTOR ^ sourcePage * PAGE_FACTOR;
    }

    /** Writes the content of the round's source pages. */
    void fill(long round, int[] sourcePages) {
        for (int page : sourcePages) {
            long word = firstWord(round, page);
            long end = (long) (page + 1) * pageBytes;
            for (long at = (long) page * pageBytes; at < end; at += Long.BYTES) {
                memory.set(ValueLayout.JAVA_LONG, at, word);
                word += WORD_FACTOR;
            }
        }
    }

    /** Number of bytes in the target pages that differ from the source pages, counted in whole words. */
    long countBadBytes(long round, int[] sourcePages, int[] targetPages) {
        long badWords = 0;
        for (int i = 0; i < targetPages.length; i++) {
            long word = firstWord(round, sourcePages[i]);
            long end = (long) (targetPages[i] + 1) * pageBytes;
            for (long at = (long) targetPages[i] * pageBytes; at < end; at += Long.BYTES) {
                badWords += memory.get(ValueLayout.JAVA_LONG, at) == word ? 0 : 1;
                word += WORD_FACTOR;
            }
        }
        return badWords * Long.BYTES;
    }
}
