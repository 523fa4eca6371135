package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;

/** Certificate authorities and what they have signed, made by the JDK's keytool into PEM files of one folder. */
final class TestCertificates {
    private static final String PASSWORD = "changeit";

    private final Path folder;
    private final Path store;

    TestCertificates(Path folder) {
        this.folder = folder;
        store = folder.resolve("all.p12");
    }

    TestCertificates authority(String name) {
        return make(name, "-ext", "bc:c", "-validity", "30");
    }

    TestCertificates signed(String name, String authority) {
        return make(name, "-signer", authority, "-validity", "30");
    }

    /** Valid for a day, ten days ago. */
    TestCertificates expired(String name, String authority) {
        return make(name, "-signer", authority, "-startdate", "-10d", "-validity", "1");
    }

    TlsFiles files(String name, String authority) {
        return new TlsFiles(pem(name), key(name), pem(authority));
    }

    String pem(String name) {
        return folder.resolve(name + ".pem").toString();
    }

    String key(String name) {
        return folder.resolve(name + ".key").toString();
    }

    /** What a server with this certificate, the only one here, serves with. */
    SSLContext serving() {
        try (InputStream content = Files.newInputStream(store)) {
            KeyStore keys = KeyStore.getInstance("PKCS12");
            keys.load(content, PASSWORD.toCharArray());
            KeyManagerFactory managers = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            managers.init(keys, PASSWORD.toCharArray());
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(managers.getKeyManagers(), null, null);
            return context;
        } catch (IOException | GeneralSecurityException e) {
            throw new IllegalStateException(e);
        }
    }

    private TestCertificates make(String name, String... more) {
        List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "keytool").toString(),
                "-genkeypair",
                "-keystore",
                store.toString(),
                "-storepass",
                PASSWORD,
                "-alias",
                name,
                "-keyalg",
                "EC",
                "-dname",
                "CN=" + name));
        command.addAll(List.of(more));
        try {
            Process process = new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .start();
            assertThat(process.waitFor()).as(String.join(" ", command)).isZero();
            write(name);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        } catch (IOException | GeneralSecurityException e) {
            throw new IllegalStateException(e);
        }
        return this;
    }

    private void write(String name) throws IOException, GeneralSecurityException {
        KeyStore made = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(store)) {
            made.load(in, PASSWORD.toCharArray());
        }
        Certificate own = made.getCertificateChain(name)[0];
        byte[] key = made.getKey(name, PASSWORD.toCharArray()).getEncoded();
        Files.writeString(Path.of(pem(name)), framed("CERTIFICATE", own.getEncoded()));
        Files.writeString(Path.of(key(name)), framed("PRIVATE KEY", key));
    }

    private static String framed(String what, byte[] encoded) {
        String body = Base64.getMimeEncoder(64, "\n".getBytes(StandardCharsets.US_ASCII))
                .encodeToString(encoded);
        return "-----BEGIN " + what + "-----\n" + body + "\n-----END " + what + "-----\n";
    }
}
