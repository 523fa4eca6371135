package io.kvmessenger.messenger.port;

/** Why a fetch ended without its KV. The sentence that the engine gets says more; this is what can be counted. */
public enum FetchFailure implements CountedReason {
    NOT_CONNECTED("not_connected", "The prefiller was not reached, or one side refused the other in the handshake."),
    CONNECTION_LOST("connection_lost", "The prefiller fell silent, closed, or broke the protocol."),
    TIME_LIMIT("time_limit", "Its KV did not come within fetch_limit_seconds."),
    NEVER_CAME("never_came", "The prefiller got no request with this transfer id within grant_wait_seconds."),
    EXPIRED("expired", "The prefiller had given the pages up when the grant came."),
    PREFILL_ABORTED("prefill_aborted", "The prefiller's engine gave the prompt up."),
    PATH_LOST("path_lost", "The prefiller lost its data path to this decoder."),
    PREFILLER_STOPPING("prefiller_stopping", "The prefiller's engine was ending."),
    UNGRANTABLE("ungrantable", "The pages asked for and what the prefiller sends do not fit together."),
    DAMAGED("damaged", "page_checksum found pages that are not like the prefiller's."),
    ABANDONED("abandoned", "This engine gave the request up: its client went away, or it was aborted."),
    STOPPING("stopping", "This engine was ending."),
    FAULT("fault", "A bug of the messenger, see kv_messenger_faults_contained_total.");

    private final String label;
    private final String sentence;

    FetchFailure(String label, String sentence) {
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
