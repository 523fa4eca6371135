package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ChunkSums;
import io.kvmessenger.messenger.port.ChunkTimeline;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * When the chunks of one prompt were computed and left: sums over all of them, and the first and the last ones layer by
 * layer. So a prompt of many chunks costs what a short one does, and four bytes a chunk.
 *
 * <p>State only, owned by the messenger's thread. A layer of a chunk has left when it has for the first of the prompt's
 * decoders, and when it has in all chunks before; nothing walks through the chunks to find that out.
 */
final class ChunkTimelines {
    /** Chunks that are kept layer by layer, from the first one on. */
    static final int FIRST_KEPT_MAX = 8;
    /** The same, back from the last one. */
    static final int LAST_KEPT_MAX = 8;

    private static final int CAPACITY_MIN = 16;

    private final List<ChunkTimeline> first = new ArrayList<>();
    /** Chunk {@code i} at {@code i % LAST_KEPT_MAX}, from the one after {@link #first} on. */
    private final ChunkTimeline[] last = new ChunkTimeline[LAST_KEPT_MAX];

    private int count;
    /** By chunk: where it ends in the prompt. */
    private int[] endTokens = {};
    /** By layer: chunks of which it has left. */
    private int[] leftCounts = {};

    private long firstSubmittedNs;
    private long forwardEndNs;
    private long layersSent;
    private long layersSentEarly;

    /** The forward pass of the next chunk begins. */
    void begin(ChunkTimeline chunk, int endToken) {
        if (count == endTokens.length) {
            endTokens = Arrays.copyOf(endTokens, Math.max(CAPACITY_MIN, 2 * count));
        }
        if (count == 0) {
            leftCounts = new int[chunk.layerCount()];
        }
        endTokens[count++] = endToken;
        if (count <= FIRST_KEPT_MAX) {
            first.add(chunk);
        } else {
            last[(count - 1) % LAST_KEPT_MAX] = chunk;
        }
    }

    /** The forward pass of a chunk is over. */
    void onComputed(ChunkTimeline chunk, long nowNs) {
        chunk.onComputed(nowNs);
        forwardEndNs = nowNs;
    }

    /** The layer's pages before {@code toPage} have been submitted, which were not before. */
    void onSubmitted(int layerIndex, int toToken, long nowNs) {
        if (count > 0) {
            firstSubmittedNs = firstSubmittedNs == 0 ? nowNs : firstSubmittedNs;
            kept(lastSubmitted(toToken)).onSubmitted(layerIndex, nowNs);
        }
    }

    /** The chunk whose pages end there: the last one, or one before it whose forward pass is in flight as well. */
    private int lastSubmitted(int toToken) {
        int chunk = count - 1;
        while (chunk > 0 && endTokens[chunk - 1] >= toToken && inFlight(chunk - 1)) {
            chunk--;
        }
        return chunk;
    }

    private boolean inFlight(int chunk) {
        ChunkTimeline kept = kept(chunk);
        return kept != null && !kept.computed();
    }

    /** Of the layer all pages have left that are complete with the prompt's first {@code toToken} tokens. */
    void onLeft(int layerIndex, int toToken, long nowNs) {
        if (count == 0) {
            return;
        }
        int chunk = leftCounts[layerIndex];
        while (chunk < count && endTokens[chunk] <= toToken) {
            layersSent++;
            layersSentEarly += inFlight(chunk) ? 1 : 0;
            ChunkTimeline kept = kept(chunk);
            if (kept != null) {
                kept.onLeft(layerIndex, nowNs);
            }
            chunk++;
        }
        leftCounts[layerIndex] = chunk;
    }

    long forwardEndNs() {
        return forwardEndNs;
    }

    ChunkSums sums() {
        return new ChunkSums(count, firstSubmittedNs, forwardEndNs, layersSent, layersSentEarly);
    }

    /** Those that are known layer by layer, in order. */
    List<ChunkTimeline> kept() {
        List<ChunkTimeline> kept = new ArrayList<>(first);
        for (int chunk = Math.max(first.size(), count - LAST_KEPT_MAX); chunk < count; chunk++) {
            kept.add(kept(chunk));
        }
        return kept;
    }

    /** Null where only the sums know of the chunk. */
    private ChunkTimeline kept(int chunk) {
        if (chunk < first.size()) {
            return first.get(chunk);
        }
        return chunk >= count - LAST_KEPT_MAX ? last[chunk % LAST_KEPT_MAX] : null;
    }
}
