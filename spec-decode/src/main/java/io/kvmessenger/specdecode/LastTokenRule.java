package io.kvmessenger.specdecode;

/**
 * Up to which token a prefiller computes and sends a prompt, and where its decoder continues. A value; pure functions,
 * which each side computes for itself. {@code kv_connector/naming/last_token.py} is the same rule in Python, tested
 * with the same cases.
 *
 * <p>A decoder computes the prompt's last token in any case, since sampling the next token needs its logits. So the
 * prefiller may leave that token out, and need not sample. A <em>state</em>, which keeps one value for all tokens
 * together, has to exclude it, since the decoder would otherwise apply it twice.
 *
 * <p>Drafts with several modules (multi-token prediction) exclude more. Module {@code j} computes the KV at token
 * {@code i} from token {@code i + j}, so after a prompt of {@code n} known tokens its last {@code j} positions are
 * based on guesses. With {@code k} modules the draft's KV is final for the first {@code n - k} tokens (DeepSeek-V3
 * technical report, section 2.2: the k-th module has outputs for tokens 1 to T - k). The decoder continues there; it
 * computes the model's KV of the following tokens a second time, with the same result. One module is EAGLE's case: its
 * one open position is the last token's, which the decoder computes anyway.
 *
 * <p>Not covered here: what an engine is told about it, and windows, which limit where pages begin but not where they
 * end.
 *
 * @param state some layers keep a state, which cannot be rolled back to an earlier token
 * @param draftModules number of the draft's modules with KV, each of which reads one token further than the previous
 *     one
 * @param leavesOut the prefiller's engine is not given the last token; always so with a state
 */
public record LastTokenRule(boolean state, int draftModules, boolean leavesOut) {
    /** Everything is computed and sent, and the decoder computes the last token again. */
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
     * Tokens {@code [0, sentTokens)} are computed by the prefiller and sent. A prompt of a single token is computed
     * although its result is unused, since an engine does not accept an empty prompt.
     */
    public int sentTokens(int promptTokens) {
        require(promptTokens);
        return leavesOut ? Math.max(1, promptTokens - 1) : promptTokens;
    }

    /** The first token that the decoder computes itself; 0 = all of them, and nothing needs to be sent. */
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
