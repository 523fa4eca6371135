package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Control links with TLS: two whole messengers, and peers that have none, another one, or half of one. */
@Timeout(900)
class TlsTest {
    private static final int HANDSHAKE_RECORD = 0x16;
    /** A limit of which a silent peer may use so little that the test does not wait long. */
    private static final long SOON_SILENT_MILLIS = 3_000;
    /** A limit that no busy machine reaches. */
    private static final long PATIENT_MILLIS = 3_600_000;

    @TempDir
    static Path folder;

    private static TestCertificates made;

    @BeforeAll
    static void make() {
        made = new TestCertificates(folder)
                .authority("ca")
                .signed("p", "ca")
                .signed("d", "ca")
                .expired("old", "ca")
                .authority("other-ca")
                .signed("other", "other-ca");
    }

    private static EngineDouble open(String role, TlsFiles files) {
        return open(role, files, Map.of());
    }

    private static EngineDouble open(String role, TlsFiles files, Map<String, Object> more) {
        Map<String, Object> options = new HashMap<>(more);
        options.put("tlsCertificate", files.certificate());
        options.put("tlsKey", files.key());
        options.put("tlsCa", files.ca());
        return new EngineDouble(role, options, Map.of());
    }

    private static EngineDouble prefiller() {
        return open("prefiller", made.files("p", "ca"));
    }

    private static void fetch(EngineDouble decoder, EngineDouble prefiller) {
        decoder.fetch("d", "t", prefiller.opened, EngineDouble.PAGE_TOKENS, 0, List.of(1));
    }

    private static String failure(EngineDouble decoder) {
        return String.valueOf(decoder.await("failed", "d").get("reason"));
    }

    @Test
    void shouldMovePagesBetweenTwoThatShowCertificates() {
        try (EngineDouble p = prefiller();
                EngineDouble d = open("decoder", made.files("d", "ca"))) {
            fetch(d, p);
            p.compute(1, "p", "t", EngineDouble.PAGE_TOKENS, 0, EngineDouble.PAGE_TOKENS, List.of(5), List.of(5));
            d.await("arrived", "d");
        }
    }

    @Test
    void shouldRefuseADecoderOfAnotherAuthority() throws Exception {
        TlsFiles files = new TlsFiles(made.pem("other"), made.key("other"), made.pem("ca"));
        try (EngineDouble p = prefiller();
                EngineDouble d = open("decoder", files)) {
            fetch(d, p);
            assertThat(failure(d)).contains("the peer ends TLS with").contains("compare its tls_ca");
            p.awaitLog("the peer has no certificate of a CA in tls_ca");
        }
    }

    @Test
    void shouldRefuseAPrefillerOfAnotherAuthority() throws Exception {
        TlsFiles files = new TlsFiles(made.pem("d"), made.key("d"), made.pem("other-ca"));
        try (EngineDouble p = prefiller();
                EngineDouble d = open("decoder", files)) {
            fetch(d, p);
            assertThat(failure(d)).contains("the peer's tls_certificate is not of a CA in tls_ca");
            p.awaitLog("the peer ends TLS with");
        }
    }

    @Test
    void shouldNotifyADecoderWithoutTls() throws Exception {
        Map<String, Object> soonTakenForSilent = Map.of("connectLimitMillis", (int) SOON_SILENT_MILLIS);
        try (EngineDouble p = open("prefiller", made.files("p", "ca"), soonTakenForSilent);
                EngineDouble d = EngineDouble.of("decoder")) {
            fetch(d, p);
            assertThat(failure(d)).contains("control links have TLS here and not at the peer: set tls_certificate");
            p.awaitLog("the peer does not speak TLS: set tls_certificate");
        }
    }

    @Test
    void shouldNotifyADecoderWithTlsThatThePrefillerHasNone() throws Exception {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = open("decoder", made.files("d", "ca"))) {
            fetch(d, p);
            assertThat(failure(d)).contains("tls_ca on both sides, or on none");
            p.awaitLog("the peer speaks TLS and this side does not");
        }
    }

    /** It could not have started with such a certificate: it expired since. */
    @Test
    void shouldRefuseACertificateThatHasExpired() throws Exception {
        SSLContext stale = made.files("old", "ca")
                .read(Instant.now().minus(Duration.ofDays(9).plusHours(12)));
        try (EngineDouble p = prefiller();
                SSLSocket socket = (SSLSocket) stale.getSocketFactory()
                        .createSocket(InetAddress.getLoopbackAddress(), p.opened.controlPort())) {
            // The refusal comes behind the handshake, or breaks it.
            assertThatThrownBy(() -> {
                        socket.startHandshake();
                        socket.getInputStream().read();
                    })
                    .isInstanceOf(IOException.class);
            p.awaitLog("the peer's tls_certificate has expired");
        }
    }

    @Test
    void shouldKeepHalfOpenHandshakesFew() throws Exception {
        Inbox inbox = new Inbox(System::nanoTime, () -> {});
        List<ControlSocket> halves = new ArrayList<>();
        try (CloseOnExec closeOnExec = new CloseOnExec(new FfmLibC());
                NettyControlNetwork network = network(inbox, PATIENT_MILLIS, closeOnExec)) {
            int port = network.listen("127.0.0.1", 0);
            for (int i = 0; i <= ControlTls.HANDSHAKES_MAX; i++) {
                halves.add(ControlSocket.dial(port));
                assertThat(halves.getLast().send(new byte[] {HANDSHAKE_RECORD})).isTrue();
            }
            halves.getFirst().awaitEnd();
        } finally {
            halves.forEach(ControlSocket::close);
        }
    }

    @Test
    void shouldEndAHandshakeThatDoesNotEnd() throws Exception {
        Inbox inbox = new Inbox(System::nanoTime, () -> {});
        try (CloseOnExec closeOnExec = new CloseOnExec(new FfmLibC());
                NettyControlNetwork network = network(inbox, SOON_SILENT_MILLIS, closeOnExec);
                ControlSocket half = ControlSocket.dial(network.listen("127.0.0.1", 0))) {
            assertThat(half.send(new byte[] {HANDSHAKE_RECORD})).isTrue();
            half.awaitEnd();
        }
    }

    @Test
    void shouldNotifyASilentPeerThatThereIsTls() throws Exception {
        Inbox inbox = new Inbox(System::nanoTime, () -> {});
        try (CloseOnExec closeOnExec = new CloseOnExec(new FfmLibC());
                NettyControlNetwork network = network(inbox, SOON_SILENT_MILLIS, closeOnExec);
                ControlSocket silent = ControlSocket.dial(network.listen("127.0.0.1", 0))) {
            Optional<ControlFrame> refusal = silent.read();
            assertThat(refusal).isPresent();
            assertThat(refusal.get().getRefusal().getField()).isEqualTo("tls");
            silent.awaitEnd();
        }
    }

    /** A busy machine's peer, or one that starts: its first handshake loads classes. */
    @Test
    void shouldWaitForAPeerThatSaysNothingForSomeSeconds() throws Exception {
        Inbox inbox = new Inbox(System::nanoTime, () -> {});
        SSLContext decoder = made.files("d", "ca").read(Instant.now());
        try (CloseOnExec closeOnExec = new CloseOnExec(new FfmLibC());
                NettyControlNetwork network = network(inbox, PATIENT_MILLIS, closeOnExec);
                SSLSocket slow = (SSLSocket) decoder.getSocketFactory()
                        .createSocket(InetAddress.getLoopbackAddress(), network.listen("127.0.0.1", 0))) {
            Thread.sleep(SOON_SILENT_MILLIS);
            slow.startHandshake(); // fails where the peer is being told that there is TLS
            assertThat(slow.getSession().isValid()).isTrue();
        }
    }

    private static NettyControlNetwork network(Inbox inbox, long limitMillis, CloseOnExec closeOnExec) {
        SSLContext tls = made.files("p", "ca").read(Instant.now());
        return new NettyControlNetwork(inbox, limitMillis, NettyControlNetwork.LINKS_MAX, closeOnExec, tls);
    }

    private static void assertRefused(TlsFiles files, String... words) {
        assertThatThrownBy(() -> files.read(Instant.now()))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContainingAll(words);
    }

    @Test
    void shouldSayWhatIsWrongWithAFile() throws IOException {
        TlsFiles right = made.files("p", "ca");
        String text = Files.writeString(folder.resolve("text"), "no PEM").toString();
        assertRefused(new TlsFiles("/no/such", right.key(), right.ca()), "tls_certificate is /no/such", "no such file");
        assertRefused(new TlsFiles(text, right.key(), right.ca()), "tls_certificate is " + text, "no certificate");
        assertRefused(new TlsFiles(right.certificate(), text, right.ca()), "tls_key is " + text, "PKCS#8");
        assertRefused(new TlsFiles(right.certificate(), right.key(), text), "tls_ca is " + text, "no certificate");
        assertRefused(new TlsFiles(right.certificate(), right.key(), ""), "tls_ca is not set", "all three, or none");
        assertRefused(
                new TlsFiles(right.certificate(), made.key("d"), right.ca()),
                "tls_key is " + made.key("d"),
                "is not the key of tls_certificate");
        assertRefused(made.files("old", "ca"), "tls_certificate", "is valid from", "and not at");
    }
}
