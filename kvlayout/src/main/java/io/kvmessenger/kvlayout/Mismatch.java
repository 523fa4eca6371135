package io.kvmessenger.kvlayout;

/** What keeps two sides from exchanging pages. */
public record Mismatch(String field, String sourceValue, String targetValue) {
    /** One sentence for the two people who configured the sides. */
    public String sentence() {
        String remedy = field.equals("pageTokens")
                ? "start both with the same, or with a multiple"
                : "start both with the same";
        return "the prefiller's " + field + " is " + sourceValue + ", the decoder's is " + targetValue + ": " + remedy;
    }
}
