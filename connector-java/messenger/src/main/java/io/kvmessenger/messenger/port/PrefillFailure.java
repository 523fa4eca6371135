package io.kvmessenger.messenger.port;

/** Why a prefill ended before its KV had left. */
public enum PrefillFailure implements CountedReason {
    UNWANTED("Its decoder declined or cancelled it."),
    EXPIRED("No grant came within grant_wait_seconds."),
    ABORTED("This engine aborted the prompt, or reported contradictory facts about it."),
    PREEMPTED("This engine preempted the prompt and computes it again."),
    PATH_LOST("The connection or the data path to its decoder was lost."),
    UNGRANTABLE("The decoder's grant does not fit the prompt."),
    STOPPING("This engine was ending.");

    private final String sentence;

    PrefillFailure(String sentence) {
        this.sentence = sentence;
    }

    @Override
    public String sentence() {
        return sentence;
    }
}
