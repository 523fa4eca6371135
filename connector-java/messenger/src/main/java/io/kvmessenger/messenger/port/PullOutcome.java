package io.kvmessenger.messenger.port;

/** What came of a request that names another engine to take the beginning of its prompt from. */
public enum PullOutcome implements CountedReason {
    ARRIVED("The beginning of the prompt was fetched."),
    FAILED("The fetch failed, and the prompt was computed."),
    PROVES("The first pull from an engine: the prompt was computed, and its pulled beginning compared with that."),
    NOT_WORTH("Too few tokens would be gained, or computing them was expected to be faster."),
    NOT_HELD("The asked engine's prefix cache holds none of the prompt."),
    UNPROVEN("The KV of the asked engine has not been compared yet, or was found different."),
    LATE("The asked engine did not answer in time."),
    EXPIRED("The request got its pages after the offer had ended."),
    BUSY("The asked engine, or this one, has too many questions open."),
    MISFIT("The prompt's KV, or that of one of the engines, cannot be pulled."),
    UNAVAILABLE("The asked engine answers no questions: engine_api_url is not set there, or its prefix cache is off."),
    PEER_TOO_OLD("The asked engine runs a build that knows no questions."),
    UNREACHABLE("The asked engine was not reached, or its session ended first."),
    ABORTED("The request ended before it had pages."),
    MALFORMED("The hint cannot be read: the log has the field."),
    OFF("The option pulls is off here."),
    ROLE("This engine's role fetches nothing."),
    POLICY_FAIL("This engine's kv_load_failure_policy does not compute what does not come.");

    private final String sentence;

    PullOutcome(String sentence) {
        this.sentence = sentence;
    }

    @Override
    public String sentence() {
        return sentence;
    }
}
