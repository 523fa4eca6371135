package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.spi.WriteBatch;

/**
 * Finds the registered memory that a path's batches read from, and caches it from one batch to the next.
 *
 * <p>Worker only. Allocates nothing and searches nothing while the source stays the same.
 */
public final class RegisteredSource {
    private final NicRegions regions;
    private long lastAddress;
    /** 0 for none. */
    private long lastLengthBytes;

    private int seenChanges;
    private long localKey;

    public RegisteredSource(NicRegions regions) {
        this.regions = regions;
    }

    /**
     * Finds the memory that the batch reads. Gathered memory is registered on first use.
     *
     * @return null if it is registered, else why the path cannot continue
     */
    public String find(WriteBatch batch) {
        long address = batch.sourceAddress();
        long lengthBytes = batch.sourceLengthBytes();
        int changes = regions.changes();
        if (changes == seenChanges && lengthBytes == lastLengthBytes && address == lastAddress) {
            return null;
        }
        NicRegions.Registered found = regions.around(address, lengthBytes);
        if (found == null && batch.isGathered()) {
            try {
                found = regions.addGathered(batch.source());
            } catch (IllegalStateException e) {
                return "of what was gathered: " + e.getMessage();
            }
        }
        if (found == null) {
            return "a source is not registered with it";
        }
        seenChanges = changes;
        lastAddress = address;
        lastLengthBytes = lengthBytes;
        localKey = found.localKey();
        return null;
    }

    /** The key by which the NIC reads the source that was last found. */
    public long localKey() {
        return localKey;
    }

    public void close() {
        lastLengthBytes = 0;
    }
}
