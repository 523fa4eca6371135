package io.kvmessenger.kvlayout;

/**
 * Which tokens of a prompt the layers of a group need. A value; the words spoken with Python and with peers are its name
 * and its window.
 */
public sealed interface GroupKind
        permits GroupKind.FullAttention, GroupKind.SlidingWindow, GroupKind.ChunkedLocal, GroupKind.State {
    GroupKind FULL_ATTENTION = new FullAttention();
    GroupKind STATE = new State();

    /** Stable: part of the geometry's wire form. */
    String name();

    /** How long the window or chunk is; 0 = all tokens are needed. */
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
     * A token attends to itself and those before it, {@code windowTokens} in all. What a prompt's last token does not attend
     * to, no later one does.
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

    /** A token attends to itself and those before it in its chunk: chunks have {@code windowTokens} tokens and follow each other. */
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
     * What is kept of all tokens together has one size however many there are (Mamba, gated delta nets, short convolutions): a
     * request has one page, {@link KvGroup#STATE_PAGE_TOKENS}, which is complete when its last token is computed.
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

    /** The kind of that {@link #name} and window. */
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
