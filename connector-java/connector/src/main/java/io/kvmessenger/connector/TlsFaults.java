package io.kvmessenger.connector;

import io.netty.handler.ssl.NotSslRecordException;
import io.netty.handler.ssl.SslHandshakeTimeoutException;
import java.nio.channels.ClosedChannelException;
import java.security.cert.CertPathBuilderException;
import java.security.cert.CertificateExpiredException;
import java.security.cert.CertificateNotYetValidException;
import javax.net.ssl.SSLException;

/** A sentence for each way in which TLS between two sides can fail. Pure functions. */
final class TlsFaults {
    private static final int CAUSES_MAX = 8;
    /** The JDK's prefix to the name of the peer's complaint. */
    private static final String ALERT = "Received fatal alert: ";

    private TlsFaults() {}

    /** The TLS failure that this is or was caused by, or null. */
    static SSLException in(Throwable failure) {
        Throwable at = failure;
        for (int i = 0; i < CAUSES_MAX && at != null; i++) {
            if (at instanceof SSLException found) {
                return found;
            }
            at = at.getCause();
        }
        return null;
    }

    static String describe(Throwable failure) {
        Throwable at = failure;
        for (int i = 0; i < CAUSES_MAX && at != null; i++) {
            String known = known(at);
            if (known != null) {
                return known;
            }
            at = at.getCause();
        }
        String words = String.valueOf(failure.getMessage());
        int alert = words.indexOf(ALERT);
        if (alert >= 0) {
            return "the peer ends TLS with '" + words.substring(alert + ALERT.length())
                    + "': compare its tls_ca with the CA of tls_certificate here, and see its log";
        }
        return words.contains("Empty client certificate chain")
                ? "the peer has no certificate of a CA in tls_ca: compare its tls_certificate with tls_ca here"
                : "TLS failed: " + words;
    }

    private static String known(Throwable failure) {
        return switch (failure) {
            case NoTlsException _, NotSslRecordException _ -> "the peer does not speak TLS: " + ControlTls.SET_ON_BOTH;
            case SslHandshakeTimeoutException _ -> "the TLS handshake did not end in time (connect_limit_seconds)";
            case ClosedChannelException _ ->
                "the peer ended the connection in the TLS handshake: see its log, and " + ControlTls.SET_ON_BOTH;
            case CertificateExpiredException _ -> "the peer's tls_certificate has expired: give it a new one";
            case CertificateNotYetValidException _ ->
                "the peer's tls_certificate is not valid yet: compare the clocks of both machines";
            case CertPathBuilderException _ -> "the peer's tls_certificate is not of a CA in tls_ca: compare the two";
            default -> null;
        };
    }
}
