package io.kvmessenger.transfer.spi;

/** The machine has nothing of a transport; the message says in one line why. */
public final class TransportUnavailableException extends Exception {
    private static final long serialVersionUID = 1L;

    public TransportUnavailableException(String detail, Throwable cause) {
        super(detail, cause);
    }
}
