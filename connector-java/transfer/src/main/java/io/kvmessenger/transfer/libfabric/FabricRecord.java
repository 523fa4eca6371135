package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.transfer.spi.PeerChannel;

/** Kinds of records between the two ends of a path over libfabric. */
final class FabricRecord {
    /** Target: the {@link RemoteMemory} for immediates without a page, and the {@link FabricName} of the endpoint behind it. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Target: the first immediate came through. */
    static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Writer: a {@link RemoteMemory} that names a region. */
    static final int REGION_WANTED = PeerChannel.FIRST_KIND + 2;

    /** Target: the {@link RemoteMemory}. */
    static final int REGION = PeerChannel.FIRST_KIND + 3;

    private FabricRecord() {}
}
