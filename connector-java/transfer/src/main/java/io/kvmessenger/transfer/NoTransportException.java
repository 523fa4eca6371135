package io.kvmessenger.transfer;

/** None of the transports in the options works on this machine; the message says why not, for each. */
public final class NoTransportException extends IllegalStateException {
    private static final long serialVersionUID = 1L;

    public NoTransportException(String message) {
        super(message);
    }
}
