package io.kvmessenger.kvlayout;

/**
 * Which tokens of a prompt the layers of a group need. A value; the words spoken with Python and with peers are its name
 * and its window.
 */
public sealed interface GroupKind permits GroupKind.FullAttention {
    GroupKind FULL_ATTENTION = new FullAttention();

    /** Stable: part of the geometry's wire form. */
    String name();

    /** How many of the last tokens are needed; 0 = all. */
    int windowTokens();

    /** Every token attends to all before it. */
    record FullAttention() implements GroupKind {
        private static final String NAME = "full";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public int windowTokens() {
            return 0;
        }
    }

    /** The kind of that {@link #name} and window. */
    static GroupKind parse(String name, int windowTokens) {
        if (!name.equals(FullAttention.NAME) || windowTokens != 0) {
            throw new IllegalArgumentException(
                    "kind of a KV group is \"" + name + "\" with windowTokens " + windowTokens
                            + ", expected \"" + FullAttention.NAME
                            + "\" with 0: serve a model whose layers all have full attention");
        }
        return FULL_ATTENTION;
    }
}
