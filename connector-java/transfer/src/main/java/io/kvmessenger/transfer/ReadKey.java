package io.kvmessenger.transfer;

/**
 * What a peer needs to read from a {@link ReadWindow}: a value, sent to that peer by the window's owner.
 *
 * @param serial names the window at its owner, and is never used again there
 * @param key drawn for this window; a read that does not show it is refused
 */
public record ReadKey(long serial, long key) {
    @Override
    public String toString() {
        return "read window " + serial;
    }
}
