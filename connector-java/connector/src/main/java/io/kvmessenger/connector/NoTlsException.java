package io.kvmessenger.connector;

import javax.net.ssl.SSLException;

/** The peer does not use TLS, which this side requires. */
final class NoTlsException extends SSLException {
    private static final long serialVersionUID = 1;

    NoTlsException() {
        super("the peer does not speak TLS");
    }
}
