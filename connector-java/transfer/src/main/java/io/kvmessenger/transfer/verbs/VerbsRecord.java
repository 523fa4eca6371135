package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.spi.PeerChannel;

/**
 * Kinds of records between the two ends of a peer's verbs paths.
 *
 * <p>All but {@link #DEVICES} are about one path, and begin with its {@link PathName}. The writer's wish gives the
 * number of its devices.
 */
final class VerbsRecord {
    /** Target: the number of its devices, four bytes, little-endian. */
    static final int DEVICES = PeerChannel.FIRST_KIND;

    /** Writer: the {@link PairName} of its queue pair for a path. */
    static final int PATH_WANTED = PeerChannel.FIRST_KIND + 1;

    /** Target: the {@link PairName} of the queue pair to connect with, which accepts writes already. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND + 2;

    /** Target: why the path is refused, as a sentence. */
    static final int PATH_REFUSED = PeerChannel.FIRST_KIND + 3;

    /** Target: the first immediate has arrived. */
    static final int READY = PeerChannel.FIRST_KIND + 4;

    /** Writer: a {@link io.kvmessenger.transfer.spi.RemoteMemory} that requests a region. */
    static final int REGION_WANTED = PeerChannel.FIRST_KIND + 5;

    /** Target: the {@link io.kvmessenger.transfer.spi.RemoteMemory}, as the path's device names it. */
    static final int REGION = PeerChannel.FIRST_KIND + 6;

    /** Writer: the path has failed, and nothing is sent through it any more. */
    static final int FAILED = PeerChannel.FIRST_KIND + 7;

    /** Target: nothing lands through the path any more; how many posts arrived, eight bytes, little-endian. */
    static final int SETTLED = PeerChannel.FIRST_KIND + 8;

    /** Writer: a path that was never ready is not needed any more. */
    static final int PATH_CLOSED = PeerChannel.FIRST_KIND + 9;

    private VerbsRecord() {}
}
