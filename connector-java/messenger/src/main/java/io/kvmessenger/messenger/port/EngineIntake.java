package io.kvmessenger.messenger.port;

/** Port: how a prefiller enqueues a prompt in its own engine when only the decoder got the request. */
public interface EngineIntake {
    /** Whether the address of this prefiller's own engine is configured. */
    boolean available();

    /** Starts to enqueue; on failure {@code Messenger.onEnqueueFailed} follows. Never blocks. */
    void enqueue(TransferKey transfer, EngineCommand.Prompt prompt);

    /**
     * Starts to ask the engine what its prefix cache holds of the prompt; {@link EngineCommand.Offer} answers. Fails as
     * {@link #enqueue}. Never blocks.
     */
    void ask(TransferKey transfer, EngineCommand.Prompt prompt);

    /**
     * The question needs nothing of the engine any more: it is answered, or not waited for. The engine computes nothing
     * for it if this comes soon. Never blocks.
     */
    void endAsk(TransferKey transfer);
}
