package io.kvmessenger.messenger;

/**
 * When one forward pass's part of a prompt was computed, and when each layer of it left.
 *
 * <p>Arrays are indexed by layer in firing order; 0 = not reached. Written by the messenger's thread, read by others
 * only after the transfer has ended.
 */
public final class ChunkTimeline {
    private final int firstToken;
    private final int endToken;
    private final long forwardStartNs;
    private final long[] readableNs;
    private final long[] submittedNs;
    private final long[] leftNs;
    private long forwardEndNs;

    public ChunkTimeline(int firstToken, int endToken, int layerCount, long forwardStartNs) {
        this.firstToken = firstToken;
        this.endToken = endToken;
        this.forwardStartNs = forwardStartNs;
        this.readableNs = new long[layerCount];
        this.submittedNs = new long[layerCount];
        this.leftNs = new long[layerCount];
    }

    public int firstToken() {
        return firstToken;
    }

    public int endToken() {
        return endToken;
    }

    public long forwardStartNs() {
        return forwardStartNs;
    }

    public long forwardEndNs() {
        return forwardEndNs;
    }

    public int layerCount() {
        return leftNs.length;
    }

    public long readableNs(int layerIndex) {
        return readableNs[layerIndex];
    }

    public long submittedNs(int layerIndex) {
        return submittedNs[layerIndex];
    }

    public long leftNs(int layerIndex) {
        return leftNs[layerIndex];
    }

    /** When its first layer was submitted; 0 = none was. */
    public long firstSubmittedNs() {
        long first = 0;
        for (long submitted : submittedNs) {
            first = submitted != 0 && (first == 0 || submitted < first) ? submitted : first;
        }
        return first;
    }

    /** Layers that have left. */
    public int layersSent() {
        int sent = 0;
        for (long left : leftNs) {
            sent += left == 0 ? 0 : 1;
        }
        return sent;
    }

    /** Layers that had left before this chunk's forward pass ended. */
    public int layersSentEarly() {
        int early = 0;
        for (long left : leftNs) {
            if (left != 0 && (forwardEndNs == 0 || left < forwardEndNs)) {
                early++;
            }
        }
        return early;
    }

    void onReadableBefore(int layerIndex, long nowNs) {
        for (int layer = 0; layer < layerIndex; layer++) {
            if (readableNs[layer] == 0) {
                readableNs[layer] = nowNs;
            }
        }
    }

    void onSubmitted(int layerIndex, long nowNs) {
        if (submittedNs[layerIndex] == 0) {
            submittedNs[layerIndex] = nowNs;
        }
    }

    void onLeft(int layerIndex, long nowNs) {
        if (leftNs[layerIndex] == 0) {
            leftNs[layerIndex] = nowNs;
        }
    }

    /** All layers are complete. */
    void onComputed(long nowNs) {
        onReadableBefore(readableNs.length, nowNs);
        forwardEndNs = nowNs;
    }
}
