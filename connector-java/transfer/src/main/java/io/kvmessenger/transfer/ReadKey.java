package io.kvmessenger.transfer;

/**
 * What a peer needs in order to read from a {@link ReadWindow}. A value, sent to that peer by the window's owner.
 *
 * @param serial identifies the window at its owner; never reused there
 * @param key drawn at random for this window; a read without it is refused
 */
public record ReadKey(long serial, long key) {
    @Override
    public String toString() {
        return "read window " + serial;
    }
}
