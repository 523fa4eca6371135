package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.IntSupplier;
import java.util.stream.IntStream;

/**
 * The KV memory of the ranks that one messenger serves, and its free pages: one index is a page on every rank, or
 * several pages of a group with smaller ones. A freed page belongs to another request immediately.
 */
final class PagePool {
    private final KvGeometry geometry;
    /** By rank. */
    private final List<MemorySegment> memories;

    private final SplittableRandom random;
    private final List<Integer> free = new ArrayList<>();
    private final BlockPages blocks;
    private final ContextPool context;
    private IntSupplier promised = () -> 0;

    PagePool(KvGeometry geometry, ContextPool context, SplittableRandom random) {
        this.geometry = geometry;
        this.random = random;
        this.memories = IntStream.range(0, geometry.ranks().size())
                .mapToObj(rank -> Arena.ofAuto().allocate(geometry.spanBytes(rank, 0)))
                .toList();
        this.blocks = new BlockPages(geometry);
        this.context = context;
        for (int page = 0; page < pageCount(); page++) {
            free.add(page);
        }
    }

    /** Pages that prompts in progress will still need; fetches leave them free. */
    void promise(IntSupplier promised) {
        this.promised = promised;
    }

    KvGeometry geometry() {
        return geometry;
    }

    /** Maps a page of this pool to pages of each group. */
    BlockPages blocks() {
        return blocks;
    }

    ContextPool context() {
        return context;
    }

    int blockTokens() {
        return blocks.blockTokens();
    }

    List<MemorySegment> memories() {
        return memories;
    }

    int pageCount() {
        return blocks.blockCount();
    }

    int freeCount() {
        return free.size();
    }

    /** Free pages that are not reserved. */
    int spareCount() {
        return free.size() - promised.getAsInt();
    }

    /** Takes arbitrary free pages; there must be enough. */
    int[] take(int count) {
        int[] pages = new int[count];
        for (int i = 0; i < count; i++) {
            int at = random.nextInt(free.size());
            pages[i] = free.set(at, free.getLast());
            free.removeLast();
        }
        return pages;
    }

    /** Frees the pages; the next owner writes into them before anything else happens. */
    void giveBack(int[] pages) {
        overwrite(pages);
        putBack(pages);
    }

    /** Frees the pages without overwriting them, since something may still read them. */
    void putBack(int[] pages) {
        for (int page : pages) {
            free.add(page);
        }
    }

    void overwrite(int[] pages) {
        for (int page : pages) {
            for (int rank = 0; rank < memories.size(); rank++) {
                for (LayerGeometry layer : geometry.ranks().get(rank).layers()) {
                    KvGroup group = geometry.groupOf(layer);
                    int share = KvGeometry.shareOf(geometry.ranks().get(rank), group);
                    for (int ofGroup : blocks.of(layer.groupIndex(), new int[] {page})) {
                        if (ofGroup % group.pageShares() == share) {
                            overwrite(memories.get(rank), layer, ofGroup / group.pageShares());
                        }
                    }
                }
            }
        }
    }

    private void overwrite(MemorySegment memory, LayerGeometry layer, int page) {
        byte scribble = (byte) random.nextInt();
        memory.asSlice(layer.pageOffsetBytes(page), layer.pageBytes()).fill(scribble);
        memory.set(ValueLayout.JAVA_BYTE, layer.pageOffsetBytes(page), (byte) (scribble + 1));
    }

    int pagesFor(int tokens) {
        return Math.ceilDiv(tokens, blockTokens());
    }
}
