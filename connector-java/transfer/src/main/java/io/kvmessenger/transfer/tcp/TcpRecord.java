package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.spi.PeerChannel;

/** Kinds of records between the two ends of tcp data paths; all but the first two carry a {@link PathRecord}, of one socket where nothing else is said. */
final class TcpRecord {
    /** Target: data sockets may come. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Target: all data sockets are there. */
    static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Target: so many frames of each of some sockets were taken. */
    static final int PATH_PROGRESS = PeerChannel.FIRST_KIND + 2;

    /** Writer: a socket broke, or was given up. */
    static final int PATH_BROKEN = PeerChannel.FIRST_KIND + 3;

    /** Target: so many frames of a socket were taken, and no more will be. */
    static final int PATH_ENDED = PeerChannel.FIRST_KIND + 4;

    private TcpRecord() {}
}
