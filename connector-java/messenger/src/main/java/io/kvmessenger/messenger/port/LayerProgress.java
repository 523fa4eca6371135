package io.kvmessenger.messenger.port;

/** Port: how far the running forward pass has come. Asked by the messenger's thread only. */
public interface LayerProgress {
    void stepBegan(long stepIndex, long counterStart);

    /** Layers of the running step whose KV is readable, counted in firing order; 0 when no step runs. */
    int readableLayerCount();

    /** The forward pass is over: every layer is readable, hooked or not. */
    void stepEnded(long stepIndex);

    /** The forward pass failed: it made no further layer readable and will not end. */
    void stepAbandoned();
}
