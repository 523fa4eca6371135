package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.spi.PeerChannel;

/** Kinds of records between the two ends of tcp data paths; all but the first two and the last carry a {@link PathRecord}, of one socket where nothing else is said. */
final class TcpRecord {
    /** Target: data sockets may come, to the addresses said ({@link DataNetworks}), or to its only one where none is said. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Target: all data sockets are there. */
    static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Target: so many frames of each of some sockets were taken. */
    static final int PATH_PROGRESS = PeerChannel.FIRST_KIND + 2;

    /** Writer: a socket broke, or was given up. */
    static final int PATH_BROKEN = PeerChannel.FIRST_KIND + 3;

    /** Target: so many frames of a socket were taken, and no more will be. */
    static final int PATH_ENDED = PeerChannel.FIRST_KIND + 4;

    /** Writer, towards a target with several networks: be ready with the first data socket, since a network may be down. */
    static final int READY_BY_ONE = PeerChannel.FIRST_KIND + 5;

    private TcpRecord() {}
}
