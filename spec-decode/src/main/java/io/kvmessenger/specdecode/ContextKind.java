package io.kvmessenger.specdecode;

/**
 * A kind of data that a transfer carries besides its KV, such as the first token or the logits after the prompt: one
 * row of fixed length for each request. A value, equal on both sides.
 */
public record ContextKind(String name, int rowBytes, Sending sending) {
    /** Which transfers carry a row of the kind. */
    public enum Sending {
        ALWAYS,
        /** Transfers whose decoder requests it. */
        ON_REQUEST
    }

    public ContextKind {
        if (name.isEmpty()) {
            throw new IllegalArgumentException("the name of a context row is empty, expected one word");
        }
        if (rowBytes < 1) {
            throw new IllegalArgumentException(
                    "context row " + name + " has rows of " + rowBytes + " bytes, expected at least 1");
        }
    }

    public boolean always() {
        return sending == Sending.ALWAYS;
    }

    @Override
    public String toString() {
        return name + " of " + rowBytes + " bytes" + (always() ? "" : " on request");
    }
}
