package io.kvmessenger.messenger.port;

/** What the question for another engine's cached prefix came to, at the engine that asks and at the one that is asked. */
public enum OfferOutcome implements CountedReason {
    HELD("The asked engine holds a beginning of the prompt, and keeps it for a grant."),
    NOT_HELD("The asked engine's prefix cache holds none of the prompt."),
    BUSY("The asked engine has too many questions, or could not take this one."),
    MISFIT("The asked engine's KV cannot be offered."),
    UNAVAILABLE("The asked engine answers no questions: engine_api_url is not set there, or its prefix cache is off."),
    PEER_TOO_OLD("The asked engine runs a build that knows no questions."),
    UNREACHABLE("The asked engine was not reached, or its session ended first."),
    LATE("No answer came in time.");

    private final String sentence;

    OfferOutcome(String sentence) {
        this.sentence = sentence;
    }

    /**
     * The reason of an engine that offers nothing.
     *
     * @param label as on the metrics page
     * @throws IllegalArgumentException if it is none of these
     */
    public static OfferOutcome answer(String label) {
        for (OfferOutcome outcome : answers()) {
            if (outcome != HELD && outcome.label().equals(label)) {
                return outcome;
            }
        }
        throw new IllegalArgumentException(
                "offer.reason is '" + label + "', expected not_held, busy, misfit or unavailable");
    }

    /** What an asked engine may answer. */
    static OfferOutcome[] answers() {
        return new OfferOutcome[] {HELD, NOT_HELD, BUSY, MISFIT, UNAVAILABLE};
    }

    @Override
    public String sentence() {
        return sentence;
    }
}
