package io.kvmessenger.messenger.port;

/** How an update of weights has ended at a host. */
public enum UpdateEnd implements CountedReason {
    APPLIED("Every rank serves it."),
    REFUSED("It was refused, or its bytes were not those that were announced: the log of the sender has the reason."),
    ABANDONED("Its sender gave it up."),
    SENDER_LOST("Its sender was lost before all of it had landed.");

    private final String sentence;

    UpdateEnd(String sentence) {
        this.sentence = sentence;
    }

    @Override
    public String sentence() {
        return sentence;
    }
}
