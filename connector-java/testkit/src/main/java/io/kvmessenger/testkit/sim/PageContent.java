package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.HeadRange;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The KV content of the simulation: each byte is a function of the prompt's text, layer, token, head and the byte's
 * position in the head, so that a byte of another prompt, layer, page or head is never mistaken for it, however the
 * sides shard. Pure.
 */
public final class PageContent {
    private final BlockPages blocks;
    private final KvGroup group;
    private final LayerGeometry layer;
    private final int firstHead;
    private final int headCount;
    private final int headBytes;
    private final int share;

    /** The pages of one layer on one rank. */
    public PageContent(KvGeometry geometry, int rankIndex, int layerIndex) {
        RankGeometry rank = geometry.ranks().get(rankIndex);
        this.layer = rank.layers().get(layerIndex);
        this.blocks = new BlockPages(geometry);
        this.group = geometry.groupOf(layer);
        HeadRange heads = geometry.headsOf(rank, layer.groupIndex());
        this.firstHead = heads.from();
        this.headCount = heads.count();
        this.headBytes = layer.pageBytes() / headCount / group.pageTokens();
        this.share = KvGeometry.shareOf(rank, group);
    }

    /** The token that a byte of a page belongs to, counted from the page's first. */
    public int tokenInPage(int byteInPage) {
        return byTokens() ? byteInPage / (headBytes * headCount) : byteInPage / headBytes % group.pageTokens();
    }

    private int headOf(int byteInPage) {
        int head = byTokens() ? byteInPage / headBytes % headCount : byteInPage / (headBytes * group.pageTokens());
        return firstHead + head;
    }

    private boolean byTokens() {
        return !(group.layout() instanceof PageLayout.Hnd);
    }

    /** The byte that the prompt's KV has at this position. */
    public byte of(String transferId, int logicalPage, int byteInPage) {
        long token = (long) logicalPage * group.pageTokens() + tokenInPage(byteInPage);
        long mixed = PromptText.at(transferId, token).hashCode() * 0x9E3779B97F4A7C15L
                ^ layer.name().hashCode() * 0xC2B2AE3D27D4EB4FL
                ^ (token + 1) * 0x165667B19E3779F9L
                ^ (headOf(byteInPage) + 1) * 0xA24BAED4963EE407L
                ^ (byteInPage % headBytes + 1) * 0xD6E8FEB86659FD93L;
        mixed ^= mixed >>> 32;
        mixed *= 0xD6E8FEB86659FD93L;
        mixed ^= mixed >>> 29;
        return (byte) mixed;
    }

    /** The pages of the layer's group that the engine's blocks map to. */
    int[] pagesOf(int[] engineBlocks) {
        return blocks.of(layer.groupIndex(), engineBlocks);
    }

    public int pageTokens() {
        return group.pageTokens();
    }

    /** Writes what a forward pass over tokens {@code [firstToken, endToken)} produces in the layer. */
    void compute(MemorySegment memory, String transferId, int[] engineBlocks, int firstToken, int endToken) {
        int[] pages = pagesOf(engineBlocks);
        int pageTokens = group.pageTokens();
        int lastPage = Math.ceilDiv(endToken, pageTokens);
        for (int logicalPage = firstToken / pageTokens; logicalPage < lastPage; logicalPage++) {
            if (pages[logicalPage] % group.pageShares() != share) {
                continue; // another rank has it
            }
            long at = layer.pageOffsetBytes(pages[logicalPage] / group.pageShares());
            for (int b = 0; b < layer.pageBytes(); b++) {
                int token = logicalPage * pageTokens + tokenInPage(b);
                if (token >= firstToken && token < endToken) {
                    memory.set(ValueLayout.JAVA_BYTE, at + b, of(transferId, logicalPage, b));
                }
            }
        }
    }
}
