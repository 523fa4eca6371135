package io.kvmessenger.connector;

import javax.net.ssl.SSLException;

/** A peer that does not speak TLS, at a side that does. */
final class NoTlsException extends SSLException {
    private static final long serialVersionUID = 1;

    NoTlsException() {
        super("the peer does not speak TLS");
    }
}
