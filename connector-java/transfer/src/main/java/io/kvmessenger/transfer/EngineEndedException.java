package io.kvmessenger.transfer;

/**
 * The transfer engine has ended by an error of its own, which is the cause: nothing moves any more, and no completion
 * will follow. Source memory is not read any more, but a peer may still write over shared memory.
 */
public final class EngineEndedException extends IllegalStateException {
    private static final long serialVersionUID = 1;

    public EngineEndedException(Throwable cause) {
        super("the transfer engine has ended by an error of its own (" + cause + ")", cause);
    }
}
