package io.kvmessenger.specdecode;

/**
 * Up to which token a prefiller computes and sends a prompt, and where its decoder goes on. A value; pure functions, which
 * both sides compute for themselves. {@code kv_connector/last_token.py} is the same rule in Python, held to the same cases.
 *
 * <p>A decoder computes the prompt's last token in any case: what is sampled behind it needs its logits. So the prefiller
 * may leave that token out, and need not sample. What keeps one value of all tokens together, a <em>state</em>, has to be
 * without it, since the decoder would put it in a second time.
 *
 * <p>Drafts of several modules (multi-token prediction) take more back. Module {@code j} computes the KV at token {@code i}
 * from token {@code i + j}, so behind a prompt of {@code n} known tokens its last {@code j} places are made of guesses. With
 * {@code k} modules the draft's KV is final for the first {@code n - k} tokens (DeepSeek-V3 technical report, section 2.2:
 * the k-th module has outputs for tokens 1 to T - k). The decoder goes on there; it computes the model's KV of the tokens
 * behind a second time, which writes the same. One module is EAGLE's case: its one open place is the last token's, which
 * the decoder computes anyway.
 *
 * <p>Not said here: what an engine is told of it, and windows, which bound where pages begin and not where they end.
 *
 * @param state some layers keep a state, which cannot be taken back to an earlier token
 * @param draftModules the draft's modules that have KV, each of which reads one token further than the one before; 0 = none
 * @param leavesOut the prefiller's engine is not given the last token; with a state it never is
 */
public record LastTokenRule(boolean state, int draftModules, boolean leavesOut) {
    /** All is computed and sent, and the decoder computes the last token again. */
    public static final LastTokenRule FULL_ATTENTION = new LastTokenRule(false, 0, false);

    /** The prefiller leaves the last token to the decoder. */
    public static final LastTokenRule STATE = new LastTokenRule(true, 0, true);

    public LastTokenRule {
        if (draftModules < 0) {
            throw new IllegalArgumentException("a draft has " + draftModules + " modules, expected 0 or more");
        }
        if (state && !leavesOut) {
            throw new IllegalArgumentException("the model keeps a state and the prefiller computes the prompt's last"
                    + " token, expected that it leaves it out: the decoder would put it into the state again");
        }
        if (state && draftModules > 0) {
            throw new IllegalArgumentException("the model keeps a state and its draft has " + draftModules
                    + " modules with KV, expected none: a state cannot be taken back to where the draft's KV is final");
        }
    }

    /**
     * Tokens {@code [0, sentTokens)} are computed by the prefiller, and travel. An engine cannot be given a prompt without
     * tokens, so the only token of a prompt is computed, for nothing.
     */
    public int sentTokens(int promptTokens) {
        require(promptTokens);
        return leavesOut ? Math.max(1, promptTokens - 1) : promptTokens;
    }

    /** The first token that the decoder computes itself; 0 = all of them, and nothing need be sent. */
    public int resumeToken(int promptTokens) {
        require(promptTokens);
        int known = leavesOut ? promptTokens - 1 : promptTokens;
        return Math.max(0, Math.min(promptTokens - 1, known - draftModules));
    }

    private static void require(int promptTokens) {
        if (promptTokens < 1) {
            throw new IllegalArgumentException("a prompt has " + promptTokens + " tokens, expected at least 1");
        }
    }
}
