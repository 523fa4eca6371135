package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * What KV looks like in the simulation: each byte is a function of transfer, layer, position and the page's byte, so that
 * a byte of another request, layer or page never passes for it. Pure.
 *
 * <p>Byte {@code b} of a page belongs to its token {@code b % pageTokens}: real layouts differ, but both sides agree.
 */
public final class PageContent {
    private PageContent() {}

    public static byte of(String transferId, String layerName, int logicalPage, int byteIndex) {
        long mixed = transferId.hashCode() * 0x9E3779B97F4A7C15L
                ^ layerName.hashCode() * 0xC2B2AE3D27D4EB4FL
                ^ (logicalPage + 1) * 0x165667B19E3779F9L
                ^ (byteIndex + 1) * 0xD6E8FEB86659FD93L;
        mixed ^= mixed >>> 32;
        mixed *= 0xD6E8FEB86659FD93L;
        mixed ^= mixed >>> 29;
        return (byte) mixed;
    }

    /** Writes what a forward pass over tokens {@code [firstToken, endToken)} leaves in one layer. */
    static void compute(
            MemorySegment memory,
            KvGeometry geometry,
            int layerIndex,
            String transferId,
            int[] pages,
            int firstToken,
            int endToken) {
        LayerGeometry layer = geometry.ranks().getFirst().layers().get(layerIndex);
        int pageTokens = geometry.pageTokens();
        int lastPage = Math.ceilDiv(endToken, pageTokens);
        for (int logicalPage = firstToken / pageTokens; logicalPage < lastPage; logicalPage++) {
            long at = layer.pageOffsetBytes(pages[logicalPage]);
            for (int b = 0; b < layer.pageBytes(); b++) {
                int token = logicalPage * pageTokens + b % pageTokens;
                if (token >= firstToken && token < endToken) {
                    memory.set(ValueLayout.JAVA_BYTE, at + b, of(transferId, layer.name(), logicalPage, b));
                }
            }
        }
    }
}
