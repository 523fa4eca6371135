package io.kvmessenger.messenger.port;

/**
 * When one forward pass computed its part of a prompt, and when each layer of it was sent.
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
    private int readableCount;
    private boolean computed;
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

    public void onReadableBefore(int layerIndex, long nowNs) {
        while (readableCount < layerIndex) {
            readableNs[readableCount++] = nowNs;
        }
    }

    public void onSubmitted(int layerIndex, long nowNs) {
        if (submittedNs[layerIndex] == 0) {
            submittedNs[layerIndex] = nowNs;
        }
    }

    public void onLeft(int layerIndex, long nowNs) {
        if (leftNs[layerIndex] == 0) {
            leftNs[layerIndex] = nowNs;
        }
    }

    /** Whether all layers are complete. */
    public boolean computed() {
        return computed;
    }

    /** Records that all layers are complete. */
    public void onComputed(long nowNs) {
        onReadableBefore(readableNs.length, nowNs);
        computed = true;
        forwardEndNs = nowNs;
    }
}
