package io.kvmessenger.transfer.spi;

/** The transport is not available on this machine; the message gives the reason in one line. */
public final class TransportUnavailableException extends Exception {
    private static final long serialVersionUID = 1L;

    public TransportUnavailableException(String detail, Throwable cause) {
        super(detail, cause);
    }
}
