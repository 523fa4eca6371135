package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ChunkSums;
import io.kvmessenger.messenger.port.ChunkTimeline;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * When the chunks of one prompt were computed and sent: totals over all of them, and layer by layer for the first and
 * the last ones. So the cost of a prompt does not grow with its chunks, except for four bytes each.
 *
 * <p>State only, owned by the messenger's thread. A layer of a chunk counts as sent when it has been sent to the first
 * of the prompt's decoders, and when it has in all earlier chunks; finding that out visits no chunk twice.
 */
final class ChunkTimelines {
    /** Number of chunks at the beginning that are kept layer by layer. */
    static final int FIRST_KEPT_MAX = 8;
    /** Number of chunks at the end that are kept layer by layer. */
    static final int LAST_KEPT_MAX = 8;

    private static final int CAPACITY_MIN = 16;

    private final List<ChunkTimeline> first = new ArrayList<>();
    /** A ring of the chunks after {@link #first}: chunk {@code i} at {@code i % LAST_KEPT_MAX}. */
    private final ChunkTimeline[] last = new ChunkTimeline[LAST_KEPT_MAX];

    private int count;
    /** By chunk: its end in the prompt, in tokens. */
    private int[] endTokens = {};
    /** By layer: number of chunks of which the layer has been sent. */
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

    /** The layer's pages up to {@code toToken} have been submitted for the first time. */
    void onSubmitted(int layerIndex, int toToken, long nowNs) {
        if (count > 0) {
            firstSubmittedNs = firstSubmittedNs == 0 ? nowNs : firstSubmittedNs;
            kept(lastSubmitted(toToken)).onSubmitted(layerIndex, nowNs);
        }
    }

    /** The chunk that ends there: the last one, or an earlier one whose forward pass is in flight as well. */
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

    /** All pages of the layer that are complete with the prompt's first {@code toToken} tokens have left. */
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

    /** The chunks known layer by layer, in order. */
    List<ChunkTimeline> kept() {
        List<ChunkTimeline> kept = new ArrayList<>(first);
        for (int chunk = Math.max(first.size(), count - LAST_KEPT_MAX); chunk < count; chunk++) {
            kept.add(kept(chunk));
        }
        return kept;
    }

    /** The timeline of a chunk; null for one that only the totals include. */
    private ChunkTimeline kept(int chunk) {
        if (chunk < first.size()) {
            return first.get(chunk);
        }
        return chunk >= count - LAST_KEPT_MAX ? last[chunk % LAST_KEPT_MAX] : null;
    }
}
