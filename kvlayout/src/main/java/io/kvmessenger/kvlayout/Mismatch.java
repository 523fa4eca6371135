package io.kvmessenger.kvlayout;

/** What keeps two sides from exchanging pages. */
public record Mismatch(String field, String sourceValue, String targetValue) {
    static final String PAGE_TOKENS = "pageTokens";

    /** One sentence for the two people who configured the sides. */
    public String sentence() {
        String remedy = field.startsWith(PAGE_TOKENS)
                ? "start both with the same (with NHD or LATENT pages, a multiple will do)"
                : "start both with the same";
        return "the prefiller's " + field + " is " + sourceValue + ", the decoder's is " + targetValue + ": " + remedy;
    }
}
