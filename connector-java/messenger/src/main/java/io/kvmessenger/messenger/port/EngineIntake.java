package io.kvmessenger.messenger.port;

/** Port: how a messenger reaches its own engine when only a peer has a prompt, to compute it or to look it up. */
public interface EngineIntake {
    /** Whether the engine can be reached with prompts to compute. */
    boolean takesPrompts();

    /** Whether the engine can be reached with questions for what its prefix cache holds. */
    boolean takesQuestions();

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
