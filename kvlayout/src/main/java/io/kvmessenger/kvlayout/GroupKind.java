package io.kvmessenger.kvlayout;

/**
 * Which tokens of a prompt the layers of a group need. A value, represented by its name and window in messages to
 * Python and peers.
 */
public sealed interface GroupKind
        permits GroupKind.FullAttention, GroupKind.SlidingWindow, GroupKind.ChunkedLocal, GroupKind.State {
    GroupKind FULL_ATTENTION = new FullAttention();
    GroupKind STATE = new State();

    /** Stable: part of the geometry's wire form. */
    String name();

    /** Length of the window or chunk; 0 = all tokens are needed. */
    int windowTokens();

    /** The first token that the last of {@code tokenCount} tokens attends to. */
    int firstNeeded(int tokenCount);

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

        @Override
        public int firstNeeded(int tokenCount) {
            return 0;
        }
    }

    /**
     * A token attends to itself and its predecessors, {@code windowTokens} in all. Tokens that a prompt's last token
     * does not attend to are not needed by later ones either.
     */
    record SlidingWindow(int windowTokens) implements GroupKind {
        private static final String NAME = "window";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public int firstNeeded(int tokenCount) {
            return Math.max(0, tokenCount - windowTokens);
        }
    }

    /** A token attends to itself and its predecessors within its chunk of {@code windowTokens} tokens. */
    record ChunkedLocal(int windowTokens) implements GroupKind {
        private static final String NAME = "chunk";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public int firstNeeded(int tokenCount) {
            return (tokenCount - 1) / windowTokens * windowTokens;
        }
    }

    /**
     * A recurrent state of constant size, whatever the number of tokens (Mamba, gated delta nets, short convolutions):
     * a request has one page, {@link KvGroup#STATE_PAGE_TOKENS} long, which is complete when its last token is
     * computed.
     */
    record State() implements GroupKind {
        private static final String NAME = "state";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public int windowTokens() {
            return 0;
        }

        @Override
        public int firstNeeded(int tokenCount) {
            return 0;
        }
    }

    /** The kind with that {@link #name} and window. */
    static GroupKind parse(String name, int windowTokens) {
        if (name.equals(FullAttention.NAME) && windowTokens == 0) {
            return FULL_ATTENTION;
        }
        if (name.equals(SlidingWindow.NAME) && windowTokens > 0) {
            return new SlidingWindow(windowTokens);
        }
        if (name.equals(ChunkedLocal.NAME) && windowTokens > 0) {
            return new ChunkedLocal(windowTokens);
        }
        if (name.equals(State.NAME) && windowTokens == 0) {
            return STATE;
        }
        throw new IllegalArgumentException("kind of a KV group is \"" + name + "\" with windowTokens " + windowTokens
                + ", expected \"" + FullAttention.NAME + "\" or \"" + State.NAME + "\" with 0, or \""
                + SlidingWindow.NAME + "\" or \"" + ChunkedLocal.NAME
                + "\" with at least 1: serve a model whose layers have full attention, a sliding window, chunked local"
                + " attention or state");
    }
}
