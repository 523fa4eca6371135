package io.kvmessenger.weights;

import com.google.protobuf.ByteString;

/** What a host's engine hears of its landing. Called on the messenger's thread. */
public interface ReceiverEvents {
    /**
     * A version is there and is what was announced: the engine may load it.
     *
     * @param contentDigest of all bytes that are there: other senders' version of the same number has another one
     */
    void landed(long updateId, long version, ByteString contentDigest);

    /**
     * The answer to {@link WeightReceiver#apply}, exactly one.
     *
     * @param reason why the engine must change nothing; "" = it loads the landing, and reports the end
     */
    void decided(long updateId, String reason);

    /** No session with the sender that gave this ticket is open any more, or none could be opened. */
    void ended(String ticket, String reason);
}
