package io.kvmessenger.transfer.socket;

/**
 * Whether what travels on tcp sockets is sealed, that is encrypted and protected from changes, and the sockets on which it is.
 * Worker only.
 */
public interface Seals {
    /** Everything travels as it is. */
    Seals NONE = new Seals() {
        @Override
        public boolean sealing() {
            return false;
        }

        @Override
        public void onDialled(int fd, Challenge asked, Hello said, byte[] key) {}

        @Override
        public void onAccepted(int fd, Challenge asked, Hello said, byte[] key) {}

        @Override
        public boolean holdsBytes(int fd) {
            return false;
        }
    };

    boolean sealing();

    /**
     * This side has dialled the socket and said its hello: what follows, both ways, is sealed if anything is.
     *
     * @param key of the admission, which both sides know
     */
    void onDialled(int fd, Challenge asked, Hello said, byte[] key);

    /** The peer's hello has been found to be right: what follows, both ways, is sealed if anything is. */
    void onAccepted(int fd, Challenge asked, Hello said, byte[] key);

    /** Whether the kernel has handed over bytes that no read has asked for yet: no event tells of these. */
    boolean holdsBytes(int fd);
}
