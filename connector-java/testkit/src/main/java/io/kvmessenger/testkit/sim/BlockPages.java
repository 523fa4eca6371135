package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.messenger.port.EngineCommand;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Maps a block that the simulated engine schedules to pages of each group: as many of the group's pages as hold its
 * tokens, with different indices in each group. So the engine has one list per prompt, and no group's list equals
 * another's. Pure.
 */
public final class BlockPages {
    private final KvGeometry geometry;
    private final int blockTokens;

    public BlockPages(KvGeometry geometry) {
        this.geometry = geometry;
        this.blockTokens =
                geometry.groups().stream().mapToInt(KvGroup::pageTokens).max().orElseThrow();
    }

    /** Number of pages that a group needs for {@code blockCount} blocks. */
    static int pageCount(int group, int blockCount, int pagesPerBlock) {
        return blockCount * pagesPerBlock + group;
    }

    public int blockTokens() {
        return blockTokens;
    }

    int blockCount() {
        return IntStream.range(0, geometry.groups().size())
                .map(group -> (geometry.groups().get(group).listedPageCount() - group) / perBlock(group))
                .min()
                .orElseThrow();
    }

    private int perBlock(int group) {
        return blockTokens / geometry.groups().get(group).pageTokens();
    }

    /** The group's pages of these blocks, in the order of their tokens. */
    int[] of(int group, int[] blocks) {
        int perBlock = perBlock(group);
        return Arrays.stream(blocks)
                .flatMap(block -> IntStream.range(0, perBlock).map(i -> block * perBlock + i + group))
                .toArray();
    }

    /**
     * The pages that a messenger is told for a prompt, from a position on.
     *
     * @param mixed whether each group gets the pages of the next one
     */
    List<EngineCommand.ChunkPages> reported(int firstBlock, int[] blocks, boolean mixed) {
        int[] from = Arrays.copyOfRange(blocks, firstBlock, blocks.length);
        int groupCount = geometry.groups().size();
        return IntStream.range(0, groupCount)
                .map(group -> mixed ? (group + 1) % groupCount : group)
                .mapToObj(group -> new EngineCommand.ChunkPages(firstBlock * perBlock(group), of(group, from)))
                .toList();
    }

    /** The block that contains a page of the group. */
    public int blockOf(int group, int page) {
        return (page - group) / perBlock(group);
    }

    /** Number of the block's tokens up to the end of that page. */
    public int tokensUpTo(int group, int page) {
        return ((page - group) % perBlock(group) + 1)
                * geometry.groups().get(group).pageTokens();
    }
}
