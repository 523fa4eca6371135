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
    /** The peer lets none, or not all, of the pages be read. */
    READ_REFUSED,
    /** A device did not copy what was to be sent, or what had been received. */
    COPY_FAILED
}
