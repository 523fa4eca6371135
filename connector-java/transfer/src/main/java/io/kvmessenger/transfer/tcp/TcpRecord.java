package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.spi.PeerChannel;

/**
 * Kinds of records about tcp data paths. All but the first two and the last carry a {@link PathRecord}, of a single
 * socket unless stated otherwise.
 */
final class TcpRecord {
    /** Target: data sockets may be dialled, to the addresses enclosed ({@link DataNetworks}) or its only one. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Target: all data sockets are there. */
    static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Target: progress of some sockets, as the number of frames taken of each. */
    static final int PATH_PROGRESS = PeerChannel.FIRST_KIND + 2;

    /** Writer: a socket broke, or was given up. */
    static final int PATH_BROKEN = PeerChannel.FIRST_KIND + 3;

    /** Target: final progress of a socket, of which no more frames will be taken. */
    static final int PATH_ENDED = PeerChannel.FIRST_KIND + 4;

    /** Writer, to a target with several networks: get ready with the first data socket, since a network may be down. */
    static final int READY_BY_ONE = PeerChannel.FIRST_KIND + 5;

    private TcpRecord() {}
}
