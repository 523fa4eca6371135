package io.kvmessenger.messenger.port;

/** Why a fetch ended without its KV, as a value to count. The sentence given to the engine has the details. */
public enum FetchFailure implements CountedReason {
    NOT_CONNECTED("The prefiller was not reached, or one side refused the other in the handshake."),
    CONNECTION_LOST("The prefiller fell silent, closed, or broke the protocol."),
    TIME_LIMIT("Its KV did not come within fetch_limit_seconds."),
    NEVER_CAME(
            "The prefiller got no request with this transfer id in time (unheard_limit_seconds; grant_wait_seconds if it had heard of it)."),
    EXPIRED("The prefiller had already freed the pages when the grant came."),
    PREFILL_ABORTED("The prefiller's engine aborted the prompt."),
    PATH_LOST("The prefiller lost its data path to this decoder."),
    PREFILLER_STOPPING("The prefiller's engine was ending."),
    UNGRANTABLE("The granted pages and what the prefiller sends do not fit."),
    DAMAGED("page_checksum found pages that differ from the prefiller's."),
    ABANDONED("This engine abandoned the request: its client went away, or it was aborted."),
    STOPPING("This engine was ending."),
    FAULT("A bug of the messenger, see kv_messenger_faults_contained_total.");

    private final String sentence;

    FetchFailure(String sentence) {
        this.sentence = sentence;
    }

    @Override
    public String sentence() {
        return sentence;
    }
}
