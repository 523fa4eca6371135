package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.spi.PeerChannel;

/**
 * Kinds of records between the two ends of what one peer writes over verbs.
 *
 * <p>All but {@link #DEVICES} are about one path, and begin with its {@link PathName}. The wish of the writer says how many devices
 * it has.
 */
final class VerbsRecord {
    /** Target: how many devices it has, four bytes, little-endian. */
    static final int DEVICES = PeerChannel.FIRST_KIND;

    /** Writer: the {@link PairName} of its queue pair for a path. */
    static final int PATH_WANTED = PeerChannel.FIRST_KIND + 1;

    /** Target: the {@link PairName} of the queue pair that the writer's is to be connected with; it takes writes already. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND + 2;

    /** Target: why there is no such path, in words. */
    static final int PATH_REFUSED = PeerChannel.FIRST_KIND + 3;

    /** Target: the first immediate came through. */
    static final int READY = PeerChannel.FIRST_KIND + 4;

    /** Writer: a {@link io.kvmessenger.transfer.spi.RemoteMemory} that names a region. */
    static final int REGION_WANTED = PeerChannel.FIRST_KIND + 5;

    /** Target: the {@link io.kvmessenger.transfer.spi.RemoteMemory}, as the path's device names it. */
    static final int REGION = PeerChannel.FIRST_KIND + 6;

    /** Writer: the path has failed, and nothing is sent through it any more. */
    static final int FAILED = PeerChannel.FIRST_KIND + 7;

    /** Target: nothing lands through the path any more; how many posts came through it, eight bytes, little-endian. */
    static final int SETTLED = PeerChannel.FIRST_KIND + 8;

    /** Writer: a path that was never ready is wanted no more. */
    static final int PATH_CLOSED = PeerChannel.FIRST_KIND + 9;

    private VerbsRecord() {}
}
