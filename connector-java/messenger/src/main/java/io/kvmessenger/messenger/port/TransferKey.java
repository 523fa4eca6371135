package io.kvmessenger.messenger.port;

/**
 * Names a transfer on both sides. Routers and clients choose ids and may reuse them, even concurrently; the digest
 * identifies the prompt that is meant under an id. A value.
 *
 * @param digest of the prompt's content; "" where an engine computes none, and then the id alone names the transfer
 */
public record TransferKey(String id, String digest) {
    /** Whether it has a digest, and so identifies its prompt. */
    public boolean hasDigest() {
        return !digest.isEmpty();
    }

    /** Whether both may name the same prompt: if either has no digest, the ids decide. */
    public boolean mayMean(TransferKey other) {
        return id.equals(other.id) && (digest.equals(other.digest) || digest.isEmpty() || other.digest.isEmpty());
    }
}
