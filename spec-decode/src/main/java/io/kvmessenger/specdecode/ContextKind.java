package io.kvmessenger.specdecode;

/**
 * One kind of what goes with a transfer beside its KV, such as the first token or the logits behind the prompt: one row of
 * equal length for each request. A value; both sides have the same ones.
 */
public record ContextKind(String name, int rowBytes, Sending sending) {
    /** With which transfers a row of the kind goes. */
    public enum Sending {
        /** With every one. */
        ALWAYS,
        /** With those whose decoder asks for it. */
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
