package io.kvmessenger.connector;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Instant;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Paths of the PEM files for TLS on control links: this side's certificate with its chain, its key, and the CAs of the
 * peers. A value; all "" = no TLS.
 *
 * <p>An invalid file is reported by an IllegalArgumentException whose message names the option, in one sentence.
 */
record TlsFiles(String certificate, String key, String ca) {
    private static final Pattern KEY =
            Pattern.compile("-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\\s]+)-----END PRIVATE KEY-----");
    private static final char[] NO_PASSWORD = new char[0];
    private static final byte[] PROBE = "does the key fit".getBytes(StandardCharsets.UTF_8);

    boolean isGiven() {
        return !certificate.isEmpty() || !key.isEmpty() || !ca.isEmpty();
    }

    /** Reads the files; rejects certificates that no peer could accept. */
    SSLContext read(Instant now) {
        List<X509Certificate> chain = certificates("tls_certificate", certificate);
        X509Certificate own = chain.getFirst();
        requireValid(own, now);
        PrivateKey privateKey = key(own);
        List<X509Certificate> cas = certificates("tls_ca", ca);
        try {
            KeyManagerFactory keys = KeyManagerFactory.getInstance("PKIX");
            KeyStore ownStore = emptyStore();
            ownStore.setKeyEntry("own", privateKey, NO_PASSWORD, chain.toArray(X509Certificate[]::new));
            keys.init(ownStore, NO_PASSWORD);
            KeyStore caStore = emptyStore();
            for (int i = 0; i < cas.size(); i++) {
                caStore.setCertificateEntry("ca" + i, cas.get(i));
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
            trust.init(caStore);
            SSLContext context = SSLContext.getInstance("TLSv1.3");
            context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
            return context;
        } catch (GeneralSecurityException | IOException e) {
            throw new IllegalStateException("TLS cannot be set up with these files: " + e.getMessage(), e);
        }
    }

    private static KeyStore emptyStore() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static List<X509Certificate> certificates(String option, String path) {
        byte[] pem = bytes(option, path);
        try {
            Collection<?> found =
                    CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem));
            if (!found.isEmpty()) {
                return found.stream().map(X509Certificate.class::cast).toList();
            }
        } catch (GeneralSecurityException e) {
            throw wrong(option, path, "holds no certificate that can be read", "PEM text with certificates", e);
        }
        throw wrong(option, path, "holds no certificate", "PEM text with certificates", null);
    }

    private void requireValid(X509Certificate own, Instant now) {
        if (now.isAfter(own.getNotAfter().toInstant())
                || now.isBefore(own.getNotBefore().toInstant())) {
            throw wrong(
                    "tls_certificate",
                    certificate,
                    "is valid from " + own.getNotBefore().toInstant() + " to "
                            + own.getNotAfter().toInstant() + " and not at " + now,
                    "a certificate that is valid now",
                    null);
        }
    }

    private PrivateKey key(X509Certificate own) {
        Matcher pem = KEY.matcher(new String(bytes("tls_key", key), StandardCharsets.ISO_8859_1));
        String expected = "an unencrypted key in PKCS#8 PEM ('openssl pkcs8 -topk8 -nodes' makes one)";
        if (!pem.find()) {
            throw wrong("tls_key", key, "holds no '-----BEGIN PRIVATE KEY-----'", expected, null);
        }
        try {
            byte[] encoded = Base64.getMimeDecoder().decode(pem.group(1));
            PrivateKey found = KeyFactory.getInstance(own.getPublicKey().getAlgorithm())
                    .generatePrivate(new PKCS8EncodedKeySpec(encoded));
            if (fits(found, own)) {
                return found;
            }
        } catch (GeneralSecurityException | IllegalArgumentException e) {
            throw wrong("tls_key", key, "holds no key of the kind of tls_certificate", expected, e);
        }
        throw wrong(
                "tls_key", key, "is not the key of tls_certificate " + certificate, "the key it was made for", null);
    }

    private static boolean fits(PrivateKey key, X509Certificate own) throws GeneralSecurityException {
        Signature signature = Signature.getInstance(
                switch (key.getAlgorithm()) {
                    case "RSA" -> "SHA256withRSA";
                    case "EC" -> "SHA256withECDSA";
                    default -> key.getAlgorithm();
                });
        signature.initSign(key);
        signature.update(PROBE);
        byte[] signed = signature.sign();
        signature.initVerify(own.getPublicKey());
        signature.update(PROBE);
        return signature.verify(signed);
    }

    private static byte[] bytes(String option, String path) {
        if (path.isEmpty()) {
            throw new IllegalArgumentException("option " + option
                    + " is not set, and another of tls_certificate, tls_key and tls_ca is: set all three, or none");
        }
        try {
            return Files.readAllBytes(Path.of(path));
        } catch (IOException e) {
            String reason = switch (e) {
                case NoSuchFileException _ -> "no such file";
                case AccessDeniedException _ -> "permission denied";
                default -> String.valueOf(e.getMessage());
            };
            throw wrong(option, path, "cannot be read (" + reason + ")", "a PEM file", e);
        }
    }

    private static IllegalArgumentException wrong(
            String option, String path, String seen, String expected, Exception cause) {
        return new IllegalArgumentException(
                "option " + option + " is " + path + ", which " + seen + ", expected " + expected, cause);
    }
}
