package io.kvmessenger.weights;

/** What a host's engine hears of its landing. Called on the messenger's thread. */
public interface ReceiverEvents {
    /** A version is there and is what was announced: the engine may load it. */
    void landed(long updateId, long version);

    /**
     * The answer to {@link WeightReceiver#apply}, exactly one.
     *
     * @param reason why the engine must change nothing; "" = it loads the landing, and reports the end
     */
    void decided(long updateId, String reason);

    /** No session with the sender that gave this ticket is open any more, or none could be opened. */
    void ended(String ticket, String reason);
}
