package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;

/** One engine's KV memory and its free pages. A page given back belongs to somebody else at once. */
final class PagePool {
    private final KvGeometry geometry;
    private final MemorySegment memory;
    private final SplittableRandom random;
    private final List<Integer> free = new ArrayList<>();

    PagePool(KvGeometry geometry, SplittableRandom random) {
        this.geometry = geometry;
        this.random = random;
        this.memory =
                MemorySegment.ofArray(new byte[(int) geometry.ranks().getFirst().spanBytes(0)]);
        for (int page = 0; page < pageCount(); page++) {
            free.add(page);
        }
    }

    KvGeometry geometry() {
        return geometry;
    }

    MemorySegment memory() {
        return memory;
    }

    int pageCount() {
        return geometry.ranks().getFirst().pageCount();
    }

    int freeCount() {
        return free.size();
    }

    /** Any free pages, in no order; there must be that many. */
    int[] take(int count) {
        int[] pages = new int[count];
        for (int i = 0; i < count; i++) {
            int at = random.nextInt(free.size());
            pages[i] = free.set(at, free.getLast());
            free.removeLast();
        }
        return pages;
    }

    /** The next owner writes into the pages before anybody else does anything. */
    void giveBack(int[] pages) {
        overwrite(pages);
        putBack(pages);
    }

    /** Free, and not written yet: something may still read them. */
    void putBack(int[] pages) {
        for (int page : pages) {
            free.add(page);
        }
    }

    void overwrite(int[] pages) {
        for (int page : pages) {
            for (LayerGeometry layer : geometry.ranks().getFirst().layers()) {
                byte scribble = (byte) random.nextInt();
                memory.asSlice(layer.pageOffsetBytes(page), layer.pageBytes()).fill(scribble);
                memory.set(ValueLayout.JAVA_BYTE, layer.pageOffsetBytes(page), (byte) (scribble + 1));
            }
        }
    }

    int pagesFor(int tokens) {
        return Math.ceilDiv(tokens, geometry.pageTokens());
    }
}
