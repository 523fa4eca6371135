package io.kvmessenger.connector.boot;

/**
 * A call was refused for a reason that the user can fix.
 *
 * <p>The message is one sentence that names the option or field, the value seen, the value expected and the remedy.
 */
public final class RefusedException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public RefusedException(String sentence) {
        super(sentence);
    }

    public RefusedException(String sentence, Throwable cause) {
        super(sentence, cause);
    }
}
