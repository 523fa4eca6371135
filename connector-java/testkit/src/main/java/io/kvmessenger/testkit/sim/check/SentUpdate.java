package io.kvmessenger.testkit.sim.check;

/**
 * A version that a trainer has begun to send. A value.
 *
 * @param trainer process that sends it
 * @param content of the whole model
 */
record SentUpdate(long id, long version, String trainer, byte[] content) {
    @Override
    public String toString() {
        return "update " + id + " (version " + version + " of " + trainer + ")";
    }
}
