package io.kvmessenger.testkit.sim;

/**
 * What the simulated prompts say: those of a family begin alike, each goes on in its own words. Pure.
 */
final class PromptText {
    private static final int FAMILIES = 2;
    private static final int SHARED_TOKENS_MAX = 40;

    private PromptText() {}

    /** How many tokens from the first on are those of its family. */
    static int sharedTokens(String transferId) {
        int drawn =
                Math.floorMod((transferId.hashCode() * 0x9E3779B9) >>> 8, SHARED_TOKENS_MAX + SHARED_TOKENS_MAX / 2);
        return Math.max(0, SHARED_TOKENS_MAX - drawn);
    }

    static String family(String transferId) {
        return "family-" + Math.floorMod(transferId.hashCode(), FAMILIES);
    }

    /** Prompts whose token at a position is of the same text have the same KV there. */
    static String at(String transferId, long token) {
        return token < sharedTokens(transferId) ? family(transferId) : transferId;
    }
}
