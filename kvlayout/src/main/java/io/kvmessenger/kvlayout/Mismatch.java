package io.kvmessenger.kvlayout;

/** The difference that prevents two sides from exchanging pages, and what to do about it. */
public record Mismatch(String field, String sourceValue, String targetValue, String remedy) {
    static final String PAGE_TOKENS = "pageTokens";
    static final String WEIGHTS_DIGEST = "weights digest";

    Mismatch(String field, String sourceValue, String targetValue) {
        this(field, sourceValue, targetValue, remedyFor(field));
    }

    static Mismatch ofSetting(String name, String sourceValue, String targetValue) {
        String excuse = name.equals(ModelSettings.MODEL)
                ? "set model_id alike on both where the model is the same"
                : "name it in settings_may_differ on both sides where that changes no KV";
        return new Mismatch(name, sourceValue, targetValue, "start both with the same, or " + excuse);
    }

    /** One sentence for the operators of both sides. */
    public String sentence() {
        return difference() + ": " + remedy;
    }

    /** The difference alone. */
    public String difference() {
        return "the prefiller's " + field + " is " + sourceValue + ", the decoder's is " + targetValue;
    }

    private static String remedyFor(String field) {
        if (field.startsWith(PAGE_TOKENS)) {
            return "start both with the same (with NHD or LATENT pages, a multiple will do)";
        }
        return field.equals(WEIGHTS_DIGEST)
                ? "start both with the same model's files, or set model_id alike on both where the weights are the same"
                : "start both with the same";
    }
}
