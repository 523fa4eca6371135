package io.kvmessenger.transfer;

/** Why a write or a path ended. */
public enum TransferFault {
    /** No process answers at the address. */
    UNREACHABLE,
    /** The peer closed or reset the path, or died. */
    PEER_CLOSED,
    /** The peer does not know the key. */
    NOT_ADMITTED,
    /** The peer refused a write: outside its windows or regions. */
    WRITE_REFUSED,
    /** The peer speaks another version, or not this protocol. */
    PROTOCOL,
    /** This side ended the path. */
    DISCONNECTED,
    /** The peer does not permit reading some or all of the pages. */
    READ_REFUSED,
    /** A device failed to copy data to be sent or data received. */
    COPY_FAILED;

    /** Whether the peer ended it, and may have given a reason elsewhere. */
    public boolean isByPeer() {
        return this == PEER_CLOSED || this == NOT_ADMITTED || this == WRITE_REFUSED;
    }
}
