package io.kvmessenger.messenger.port;

/** Why a prefill ended before its KV had left. */
public enum PrefillFailure implements CountedReason {
    UNWANTED("unwanted", "Its decoder declined or cancelled it."),
    EXPIRED("expired", "No grant came within grant_wait_seconds."),
    ABORTED("aborted", "This engine gave the prompt up, or told of it what makes no sense."),
    PREEMPTED("preempted", "This engine preempted the prompt and computes it again."),
    PATH_LOST("path_lost", "The connection or the data path to its decoder was lost."),
    UNGRANTABLE("ungrantable", "The decoder's grant does not fit the prompt."),
    STOPPING("stopping", "This engine was ending.");

    private final String label;
    private final String sentence;

    PrefillFailure(String label, String sentence) {
        this.label = label;
        this.sentence = sentence;
    }

    @Override
    public String label() {
        return label;
    }

    @Override
    public String sentence() {
        return sentence;
    }
}
