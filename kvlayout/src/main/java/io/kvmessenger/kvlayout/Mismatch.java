package io.kvmessenger.kvlayout;

/** What keeps two sides from exchanging pages. */
public record Mismatch(String field, String sourceValue, String targetValue) {
    /** One sentence for the two people who configured the sides. */
    public String sentence() {
        return "the prefiller's " + field + " is " + sourceValue + ", the decoder's is " + targetValue
                + ": start both with the same";
    }
}
