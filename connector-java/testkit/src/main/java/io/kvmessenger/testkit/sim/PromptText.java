package io.kvmessenger.testkit.sim;

/** The texts of the simulated prompts: prompts of a family have a common beginning and differ afterwards. Pure. */
final class PromptText {
    private static final int FAMILIES = 2;
    private static final int SHARED_TOKENS_MAX = 40;

    private PromptText() {}

    /** Number of tokens that are common to its family. */
    static int sharedTokens(String transferId) {
        int drawn =
                Math.floorMod((transferId.hashCode() * 0x9E3779B9) >>> 8, SHARED_TOKENS_MAX + SHARED_TOKENS_MAX / 2);
        return Math.max(0, SHARED_TOKENS_MAX - drawn);
    }

    static String family(String transferId) {
        return "family-" + Math.floorMod(transferId.hashCode(), FAMILIES);
    }

    /** Prompts with equal text at a token's position have equal KV there. */
    static String at(String transferId, long token) {
        return token < sharedTokens(transferId) ? family(transferId) : transferId;
    }
}
