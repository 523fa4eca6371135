package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.spi.PeerChannel;

/** Kinds of records between the two ends of a path over verbs. */
final class VerbsRecord {
    /** Target: the {@link PairName} of the queue pair that the writer's is to be connected with; it takes writes already. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Target: the first immediate came through. */
    static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Writer: a {@link io.kvmessenger.transfer.spi.RemoteMemory} that names a region. */
    static final int REGION_WANTED = PeerChannel.FIRST_KIND + 2;

    /** Target: the {@link io.kvmessenger.transfer.spi.RemoteMemory}. */
    static final int REGION = PeerChannel.FIRST_KIND + 3;

    /** Writer: the path has failed, and nothing is sent through it any more. */
    static final int FAILED = PeerChannel.FIRST_KIND + 4;

    /** Target: nothing lands through the path any more; how many posts came through it, eight bytes, little-endian. */
    static final int SETTLED = PeerChannel.FIRST_KIND + 5;

    private VerbsRecord() {}
}
