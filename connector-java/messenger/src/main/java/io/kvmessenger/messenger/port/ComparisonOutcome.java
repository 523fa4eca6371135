package io.kvmessenger.messenger.port;

/** What the comparison of a prompt's last token, as received and as computed by the decoder's engine, came to. */
public enum ComparisonOutcome implements CountedReason {
    EQUAL("Both engines computed the same, up to rounding."),
    DIFFERENT("The engines differ by more than rounding explains: compare their settings and weights; the log names the"
            + " layer."),
    UNJUDGED("The token could not be compared.");

    private final String sentence;

    ComparisonOutcome(String sentence) {
        this.sentence = sentence;
    }

    @Override
    public String sentence() {
        return sentence;
    }
}
