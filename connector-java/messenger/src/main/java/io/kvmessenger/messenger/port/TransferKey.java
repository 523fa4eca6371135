package io.kvmessenger.messenger.port;

/**
 * What a transfer is known by on both sides. Routers and clients choose ids and use them twice, also at the same moment; the
 * digest tells which of the prompts under an id is meant. A value.
 *
 * @param digest of what the prompt holds; "" where an engine makes none, and then the id alone has to do
 */
public record TransferKey(String id, String digest) {
    /** Whether it says which prompt it means. */
    public boolean tellsPrompt() {
        return !digest.isEmpty();
    }

    /** Whether both may mean one prompt: where a side tells no digest, the id decides. */
    public boolean mayMean(TransferKey other) {
        return id.equals(other.id) && (digest.equals(other.digest) || digest.isEmpty() || other.digest.isEmpty());
    }
}
