package io.kvmessenger.transfer.link;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.Descriptors;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Pulse;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.util.List;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;

/** One end of a link against sockets that say what they like. */
final class SocketLinksTest extends SocketLinksBed {
    @Test
    void shouldCloseAnotherUsersSocketBeforeAByteIsRead() {
        sameUser = false;
        int unproven = SOCKETS.connectAbstract(here);
        MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES);
        assertThat(LIB_C.write(unproven, hello, Hello.LENGTH_BYTES)).isEqualTo(Hello.LENGTH_BYTES);
        work();
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
        assertThat(admission.link()).isNull();
        // The kernel says so when what was sent had not been read.
        assertThat(read(unproven)).isEqualTo(-Errno.ECONNRESET);
        LIB_C.close(unproven);
    }

    @Test
    void shouldTakeNoDescriptorFromThoseTurnedAway() throws IOException {
        int unproven = peer(WRONG_KEY);
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
        Descriptors.send(unproven, record(ControlRecord.MESSAGE, MemorySegment.NULL), gift, gift);
        work();
        assertThat(Descriptors.gifts()).isEqualTo(1);
        assertThat(Descriptors.send(unproven, record(ControlRecord.MESSAGE, MemorySegment.NULL), gift))
                .as("it was hung up on")
                .isNegative();
        LIB_C.close(unproven);
    }

    @Test
    void shouldTakeNoDescriptorFromAnAdmittedPeerAndWaitForItsHangUp() throws IOException {
        int peer = peer(KEY);
        attach(peer, 0, MAPPED);
        ready(peer, 0);
        Descriptors.send(peer, record(ControlRecord.MESSAGE, MemorySegment.NULL), gift, gift);
        work();
        assertThat(Descriptors.gifts()).isEqualTo(1);
        assertThat(port.closed)
                .as("it may still write: only its hang-up ends the admission")
                .isEmpty();
        LIB_C.close(peer);
        work();
        assertThat(port.closed).hasSize(1);
    }

    /** A child that the writer forked holds a copy of its socket, and lives on. */
    @Test
    void shouldTakeTheEndOfTheProcessForProofAlthoughItsSocketLivesOn() throws IOException, InterruptedException {
        Process process = new ProcessBuilder("sleep", "600").start();
        peersDeath = LIB_C.pidfd_open((int) process.pid());
        assertThat(peersDeath).isNotNegative();
        int peer = peer(KEY);
        attach(peer, 0, MAPPED);
        assertThat(watched).isTrue();
        ready(peer, 0);
        assertThat(port.closed).isEmpty();
        process.destroyForcibly().waitFor();
        work();
        assertThat(port.closed).containsExactly("the peer's process has ended");
        LIB_C.close(peer);
    }

    @Test
    void shouldLetADomainKnowThatTheEndOfAProcessCannotBeSeen() {
        int peer = peer(KEY);
        watched = true;
        attach(peer, 0, MAPPED);
        assertThat(watched).isFalse();
        LIB_C.close(peer);
    }

    /** A device may still write for a process whose sockets are closed already. */
    @Test
    void shouldTakeOnlyTheEndOfTheProcessForProofWhereADeviceWrites() throws IOException, InterruptedException {
        Process process = new ProcessBuilder("sleep", "600").start();
        peersDeath = LIB_C.pidfd_open((int) process.pid());
        int peer = peer(KEY);
        attach(peer, 0, MAPPED);
        ready(peer, 0);
        paths.getFirst().outlivesHangUp = true;
        LIB_C.close(peer);
        work();
        assertThat(port.closed).isEmpty();
        process.destroyForcibly().waitFor();
        work();
        assertThat(port.closed).containsExactly("the peer's process has ended");
    }

    @Test
    void shouldTakeAHangUpForProofOfAPeerThatHasReportedItsDeviceQuiet() throws IOException, InterruptedException {
        Process process = new ProcessBuilder("sleep", "600").start();
        peersDeath = LIB_C.pidfd_open((int) process.pid());
        int peer = peer(KEY);
        attach(peer, 0, MAPPED);
        ready(peer, 0);
        paths.getFirst().outlivesHangUp = true;
        say(peer, PeerChannel.QUIET_KIND, 0, MemorySegment.NULL);
        assertThat(port.closed).isEmpty();
        LIB_C.close(peer);
        work();
        assertThat(port.closed).hasSize(1);
        process.destroyForcibly().waitFor();
    }

    @Test
    void shouldKeepPathsOfSeveralDomainsOverOneSocketAndEndEachByItsOwnProof() {
        int peer = peer(KEY);
        attach(peer, 0, MAPPED);
        ready(peer, 0);
        attach(peer, 1, SENT);
        ready(peer, 1);
        assertThat(paths).hasSize(2);
        admission.link().revoke("enough");
        assertThat(paths.get(1).closed).isTrue();
        assertThat(port.closed).as("the first may still write").isEmpty();
        say(peer, ControlRecord.DETACH, 0, MemorySegment.NULL);
        assertThat(paths.getFirst().closed).isTrue();
        assertThat(port.closed).containsExactly("the peer uses its paths no more");
        LIB_C.close(peer);
        work();
        assertThat(port.closed).hasSize(1);
    }

    @Test
    void shouldRefuseADomainThatItDoesNotHaveAndTakeAnotherAfterIt() {
        int peer = peer(KEY);
        attach(peer, 0, "carrier pigeon");
        assertThat(paths).isEmpty();
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
        say(peer, ControlRecord.DETACH, 0, MemorySegment.NULL);
        ready(peer, 0);
        attach(peer, 1, SENT);
        assertThat(paths).hasSize(1);
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
        LIB_C.close(peer);
    }

    /** A peer gives its try up at the limit and makes another: that has to be heard. */
    @Test
    void shouldGiveBackTheAdmissionOfAPeerThatIsNotReadyInTime() {
        int peer = peer(KEY);
        attach(peer, 0, MAPPED);
        nowNs = CONNECT_LIMIT_NS + AdmittedLink.NEXT_TRY_NS;
        work();
        assertThat(admission.link()).isNotNull();
        nowNs = CONNECT_LIMIT_NS + AdmittedLink.NEXT_TRY_NS + 1;
        work();
        assertThat(admission.link()).isNull();
        assertThat(paths.getFirst().closed).isTrue();
        assertThat(port.closed).as("the key may be used once more").isEmpty();
        LIB_C.close(peer);
    }

    @Test
    void shouldLetPathsEndByThemselvesAfterThePeerHasGoneButNotForEver() {
        int peer = peer(KEY);
        attach(peer, 0, SENT);
        ready(peer, 0);
        links.use(List.of());
        FakeInboundPaths slow = paths.getFirst();
        LIB_C.close(peer);
        work();
        assertThat(slow.gone).isTrue();
        assertThat(port.closed).hasSize(1);
    }

    /** A peer over an internet socket that speaks at most this version, with open paths. */
    private int inetPeer(int newestVersion) {
        InetAddress host = InetAddress.getLoopbackAddress();
        String there = links.listenInet(SENT, host, host.getHostAddress(), 0, 0, port, figures);
        int fd = SOCKETS.connectInet(host, SocketLocation.parse(there, false).getPort());
        MemorySegment given = arena.allocate(Challenge.LENGTH_BYTES, 8);
        await(() -> LIB_C.read(fd, given, Challenge.LENGTH_BYTES) == Challenge.LENGTH_BYTES);
        Challenge asked = new Challenge(4, newestVersion, Challenge.parse(given).nonce());
        Hello answer = Hello.answer(asked, there, Hello.CONTROL, 0, KEY, NONCE);
        MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES, 8);
        answer.encode(hello);
        assertThat(LIB_C.write(fd, hello, answer.lengthBytes())).isEqualTo(answer.lengthBytes());
        await(() -> admission.link() != null);
        attach(fd, 0, SENT);
        await(() -> !paths.isEmpty());
        ready(fd, 0);
        await(() -> paths.getFirst().ready);
        return fd;
    }

    private void await(BooleanSupplier condition) {
        for (int i = 0; !condition.getAsBoolean(); i++) {
            assertThat(i).isLessThan(1_000_000);
            work();
        }
    }

    /** It would take the record for a fault, and gives none itself. */
    @Test
    void shouldNeitherGiveNorExpectHeartbeatsOfAPeerOfAnEarlierVersion() {
        int peer = inetPeer(4);
        for (int i = 0; i < 10 * Pulse.BEATS; i++) {
            nowNs += IDLE_LIMIT_NS / Pulse.BEATS;
            work();
        }
        assertThat(read(peer)).as("the acceptance alone").isEqualTo(8);
        assertThat(admission.link()).isNotNull();
        assertThat(port.closed).isEmpty();
        LIB_C.close(peer);
    }

    @Test
    void shouldLetGoOfAPeerThatGivesNoHeartbeat() {
        int peer = inetPeer(Hello.VERSION);
        for (int i = 0; i < Pulse.BEATS; i++) {
            nowNs += IDLE_LIMIT_NS / Pulse.BEATS;
            work();
        }
        assertThat(read(peer)).as("the acceptance and a heartbeat per interval").isEqualTo(8 + 8L * Pulse.BEATS);
        say(peer, ControlRecord.ALIVE, 0, MemorySegment.NULL);
        for (int i = 0; i < Pulse.BEATS; i++) {
            assertThat(port.closed).isEmpty();
            nowNs += IDLE_LIMIT_NS / Pulse.BEATS;
            work();
        }
        nowNs += IDLE_LIMIT_NS / Pulse.BEATS;
        work();
        assertThat(port.closed).containsExactly("nothing came from the peer on the control socket for 1000.0 s");
        LIB_C.close(peer);
    }

    private OutboundLink dial(TransportAddress... there) {
        return links.connect(
                new EngineAddress(List.of(there)),
                KEY,
                new LinkEvents() {
                    @Override
                    public boolean onAsked(MemorySegment payload) {
                        return false;
                    }

                    @Override
                    public void onOpened() {
                        events.add("opened");
                    }

                    @Override
                    public void onLost(TransferFault fault, String detail) {
                        events.add(fault + " " + detail);
                    }
                },
                nowNs);
    }

    private int listen(String name) {
        return SOCKETS.listenAbstract(name);
    }

    private static int accept(int listenFd) {
        return LIB_C.accept4(
                listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
    }

    @Test
    void shouldNotSayItsKeyToAnotherUsersSocket() {
        String name = "kvmessenger-target-" + ProcessHandle.current().pid();
        int listenFd = listen(name);
        sameUser = false;
        OutboundLink link = dial(new TransportAddress(MAPPED, name));
        link.doWork(nowNs);
        assertThat(events).hasSize(1);
        assertThat(events.getFirst()).startsWith("UNREACHABLE").contains("belongs to another user");
        link.close();
        int fd = accept(listenFd);
        assertThat(read(fd)).as("bytes said before it hung up").isZero();
        LIB_C.close(fd);
        LIB_C.close(listenFd);
    }

    /** Of two ways the one that carries descriptors is tried first, whatever is preferred for data. */
    @Test
    void shouldTakeTheUnixSocketAndElseAnother() {
        String there = links.listenInet(SENT, InetAddress.getLoopbackAddress(), "127.0.0.1", 0, 0, port, figures);
        OutboundLink link = dial(new TransportAddress(SENT, there), new TransportAddress(MAPPED, here));
        for (int i = 0; events.isEmpty() && i < 100; i++) {
            work();
            link.doWork(nowNs);
        }
        assertThat(events).containsExactly("opened");
        assertThat(link.channel(new FakeDomain(MAPPED, 0)).carriesDescriptors()).isTrue();
        link.close();
        work();
        assertThat(admission.link()).as("it never was ready").isNull();
        events.clear();
        OutboundLink other =
                dial(new TransportAddress(SENT, there), new TransportAddress(MAPPED, "kvmessenger-nowhere"));
        for (int i = 0; events.isEmpty() && i < 10_000; i++) {
            other.doWork(nowNs);
            work();
        }
        assertThat(events).containsExactly("opened");
        assertThat(other.channel(new FakeDomain(SENT, 0)).carriesDescriptors()).isFalse();
        other.close();
        work();
    }
}
