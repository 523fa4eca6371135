package io.kvmessenger.kvlayout;

/** The difference that prevents two sides from exchanging pages. */
public record Mismatch(String field, String sourceValue, String targetValue) {
    static final String PAGE_TOKENS = "pageTokens";
    static final String WEIGHTS_DIGEST = "weights digest";

    /** One sentence for the operators of both sides. */
    public String sentence() {
        return "the prefiller's " + field + " is " + sourceValue + ", the decoder's is " + targetValue + ": "
                + remedy();
    }

    private String remedy() {
        if (field.startsWith(PAGE_TOKENS)) {
            return "start both with the same (with NHD or LATENT pages, a multiple will do)";
        }
        return field.equals(WEIGHTS_DIGEST)
                ? "start both with the same model's files, or set model_id alike on both where the weights are the same"
                : "start both with the same";
    }
}
