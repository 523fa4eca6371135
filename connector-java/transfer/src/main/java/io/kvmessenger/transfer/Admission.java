package io.kvmessenger.transfer;

/** One peer's permission to open data paths to this engine. A value; the key is secret. */
public record Admission(int id, String peerName, byte[] key) {
    public static final int KEY_LENGTH_BYTES = 16;
}
