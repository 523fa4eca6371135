package io.kvmessenger.transfer.socket;

/** Which tcp sockets are sealed, that is encrypted and authenticated. Worker only. */
public interface Seals {
    /** No socket is sealed. */
    Seals NONE = new Seals() {
        @Override
        public boolean sealing() {
            return false;
        }

        @Override
        public byte[] freshNonce() {
            return new byte[Hello.NONCE_LENGTH_BYTES];
        }

        @Override
        public void onDialled(int fd, Challenge asked, Hello given, byte[] key) {}

        @Override
        public void onAccepted(int fd, Challenge asked, Hello given, byte[] key) {}

        @Override
        public boolean holdsBytes(int fd) {
            return false;
        }
    };

    boolean sealing();

    /** A nonce for a {@link Hello} on a socket that will be sealed; all zero if none will. */
    byte[] freshNonce();

    /**
     * This side has dialled the socket and sent its hello: from here on both directions are sealed, if sealing is on.
     *
     * @param key of the admission, known to both sides
     */
    void onDialled(int fd, Challenge asked, Hello given, byte[] key);

    /** The peer's hello is valid: from here on both directions are sealed, if sealing is on. */
    void onAccepted(int fd, Challenge asked, Hello given, byte[] key);

    /** Whether bytes were read from the kernel that no caller has read yet: no event will report them. */
    boolean holdsBytes(int fd);
}
