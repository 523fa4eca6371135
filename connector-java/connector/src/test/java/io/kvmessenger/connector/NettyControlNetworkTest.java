package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.messenger.wire.Heartbeat;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** How much of this process one peer's links can take. */
@Timeout(900)
class NettyControlNetworkTest {
    private static final int LINKS_MAX = 3;
    /** What these tests are not about. */
    private static final long CONNECT_LIMIT_MILLIS = 600_000;

    private static final int FRAME_TEXT_BYTES = 32 << 10;
    /** So long that the bytes of waiting frames reach their limit before their number does. */
    private static final int LONG_TEXT_BYTES = 128 << 10;

    private static final int FLOOD_BYTES = 64 << 20;
    private static final long FIRST_LINK = 1;
    /** More than a JVM needs, and soon used up. */
    private static final int DESCRIPTORS_MAX = 128;

    private final Inbox inbox = new Inbox(System::nanoTime, () -> {});
    private final CloseOnExec closeOnExec = new CloseOnExec(new FfmLibC());
    private final NettyControlNetwork network =
            new NettyControlNetwork(inbox, CONNECT_LIMIT_MILLIS, LINKS_MAX, closeOnExec, null);
    private final int port = network.listen("127.0.0.1", 0);

    @AfterEach
    void close() {
        network.close();
        closeOnExec.close();
    }

    @Test
    void shouldTurnLinksAwayBeyondTheLimitAndTakeNewOnesWhenOthersEnd() throws Exception {
        ControlSocket[] held = new ControlSocket[LINKS_MAX];
        for (int i = 0; i < LINKS_MAX; i++) {
            held[i] = ControlSocket.dial(port);
        }
        awaitInputs(LINKS_MAX);
        try (ControlSocket tooMany = ControlSocket.dial(port)) {
            assertThat(tooMany.read()).isEmpty();
        }
        for (int round = 0; round < 2 * LINKS_MAX; round++) {
            int inputs = inbox.size();
            held[0].close();
            awaitInputs(inputs + 1);
            held[0] = ControlSocket.dial(port);
            awaitInputs(inputs + 2);
            network.send(FIRST_LINK + LINKS_MAX + round, heartbeat());
            assertThat(held[0].read()).isPresent(); // a rejected link would have ended
        }
        for (ControlSocket socket : held) {
            socket.close();
        }
    }

    /** Netty logs that it cannot accept, and the first line of the JDK's log opens files. */
    @Test
    void shouldAcceptAgainWhenDescriptorsAreFreeAgain() throws Exception {
        Process child = TestJvm.startLimited(DESCRIPTORS_MAX, WithoutDescriptors.class, "prepared");
        try (BufferedReader printed = child.inputReader();
                BufferedWriter asked = child.outputWriter()) {
            int childsPort = Integer.parseInt(printed.readLine());
            proceed(asked);
            assertThat(printed.readLine()).isEqualTo("none left");
            try (ControlSocket waits = ControlSocket.dial(childsPort)) {
                assertThat(printed.readLine()).as("it cannot accept").isEqualTo("logged");
                proceed(asked);
                String next = printed.readLine();
                while ("logged".equals(next)) { // a failed accept is tried again each second
                    next = printed.readLine();
                }
                assertThat(next).isEqualTo("input");
                assertThat(waits.send(heartbeat())).isTrue();
            }
        } finally {
            child.destroyForcibly();
        }
    }

    @Test
    void shouldReportThatItsThreadHasEndedAndTakeWhatIsAskedOfIt() throws Exception {
        try (ControlSocket peer = ControlSocket.dial(port)) {
            awaitInputs(1);
            assertThat(peer.send(heartbeat())).isTrue();
            awaitInputs(2);
            network.loop.shutdownGracefully(0, 0, TimeUnit.MILLISECONDS).sync();
            awaitInputs(4); // the link's end, and the thread's

            network.send(FIRST_LINK, heartbeat());
            network.trust(FIRST_LINK);
            network.close(FIRST_LINK);
            long dialled = network.dial("127.0.0.1", port);
            awaitInputs(5);
            assertThat(dialled).isGreaterThan(FIRST_LINK);
        }
    }

    @Test
    void shouldTakeOneFrameAtATimeFromAnUnprovenPeer() throws Exception {
        try (SocketChannel unproven = dial()) {
            awaitInputs(1);
            flood(unproven, FRAME_TEXT_BYTES, 2);
            assertThat(inbox.size()).isEqualTo(2);
        }
    }

    @Test
    void shouldNotReadOnWhileTooMuchOfAPeerWaits() throws Exception {
        try (SocketChannel peer = dial()) {
            awaitInputs(1);
            trust(peer);
            int framesMax = (int) (NettyControlNetwork.FRAME_BYTES_WAITING_MAX / LONG_TEXT_BYTES);
            flood(peer, LONG_TEXT_BYTES, framesMax);
            assertThat(framesMax).isLessThan(NettyControlNetwork.FRAMES_WAITING_MAX);
            assertThat(inbox.size()).isLessThanOrEqualTo(framesMax + 2);
        }
    }

    @Test
    void shouldNotReadOnWhileTooManyFramesOfAPeerWait() throws Exception {
        try (SocketChannel peer = dial()) {
            awaitInputs(1);
            trust(peer);
            byte[] frame = ControlSocket.framed(heartbeat().toByteArray());
            ByteBuffer frames = ByteBuffer.allocate(frame.length * 100_000);
            while (frames.hasRemaining()) {
                frames.put(frame);
            }
            writeUntilBlocked(peer, frames.flip(), NettyControlNetwork.FRAMES_WAITING_MAX);
            assertThat(inbox.size()).isLessThanOrEqualTo(NettyControlNetwork.FRAMES_WAITING_MAX + 2);
        }
    }

    @Test
    void shouldHangUpOnAPeerThatNeverReads() throws Exception {
        try (SocketChannel peer = dial()) {
            awaitInputs(1);
            assertThat(peer.isConnected()).isTrue(); // and never read
            ControlFrame frame = sized(1 << 20);
            long enoughBytes = 3L * NettyControlNetwork.UNSENT_BYTES_MAX;
            long sentBytes = 0;
            while (inbox.size() < 2 && sentBytes < enoughBytes) {
                network.send(FIRST_LINK, frame);
                sentBytes += frame.getSerializedSize();
                Thread.sleep(1);
            }
            awaitInputs(2); // the end of the link, which its thread reports in its own time
            assertThat(sentBytes).isGreaterThan(NettyControlNetwork.UNSENT_BYTES_MAX / 2);
        }
    }

    @Test
    void shouldCountNothingInvalidWhenAConnectionIsReset() throws Exception {
        try (EngineDouble prefiller = EngineDouble.of("prefiller")) {
            for (int i = 0; i < 5; i++) {
                ControlSocket.dial(prefiller.opened.controlPort()).close(); // by a reset
            }
            try (ControlSocket garbage = ControlSocket.dial(prefiller.opened.controlPort())) {
                assertThat(garbage.send(new byte[] {0x7f, 0, 0, 0})).isTrue();
                garbage.awaitEnd();
            }
            prefiller.awaitCounter("kv_messenger_frames_invalid", 1);
            assertThat(prefiller.clean()).isTrue();
            prefiller.awaitCounter("kv_messenger_frames_invalid", 1);
        }
    }

    @Test
    void shouldServeOthersWhileANameServerIsSilent() {
        CountDownLatch answer = SlowNames.fallSilent();
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            decoder.submit(EngineDouble.fetchCommand(
                    "slow",
                    "t0",
                    List.of(Map.of("host", SlowNames.SLOW_HOST, "port", 1)),
                    EngineDouble.PAGE_TOKENS,
                    0,
                    List.of(9)));
            decoder.fetch("d", "t", prefiller.opened, EngineDouble.PAGE_TOKENS, 0, List.of(1));
            prefiller.compute(
                    1, "p", "t", EngineDouble.PAGE_TOKENS, 0, EngineDouble.PAGE_TOKENS, List.of(5), List.of(5));
            decoder.await("arrived", "d");

            answer.countDown();
            assertThat(decoder.await("failed", "slow").get("reason"))
                    .asString()
                    .contains("slow.invalid:1 cannot be reached: no such host is known");
        } finally {
            answer.countDown();
        }
    }

    @Test
    void shouldNotConnectALinkThatWasClosedWhileItsHostWasLookedUp() throws Exception {
        try (ServerSocket listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            CountDownLatch answer = SlowNames.fallSilent();
            long link = network.dial(SlowNames.SLOW_HOST, listener.getLocalPort());
            network.close(link);
            answer.countDown();
            long next = network.dial("127.0.0.1", listener.getLocalPort());
            listener.accept().close();
            assertThat(next).isGreaterThan(link);
        }
    }

    /** Until it has effect one frame is taken, and no more of them as long as the messenger does not handle it. */
    private void trust(SocketChannel peer) throws IOException {
        network.trust(FIRST_LINK);
        network.send(FIRST_LINK, heartbeat()); // by the same thread, after it
        assertThat(peer.read(ByteBuffer.allocate(1))).isEqualTo(1);
    }

    private SocketChannel dial() throws IOException {
        return SocketChannel.open(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
    }

    /** Writes large frames until the messenger reads no more; what is on the way then is what it has taken. */
    private void flood(SocketChannel peer, int textBytes, int inputsMin) throws Exception {
        byte[] frame = ControlSocket.framed(sized(textBytes).toByteArray());
        ByteBuffer frames = ByteBuffer.allocate(FLOOD_BYTES);
        while (frames.remaining() >= frame.length) {
            frames.put(frame);
        }
        writeUntilBlocked(peer, frames.flip(), inputsMin);
    }

    /** Where nothing holds a writer back this ends as well, with all of it in the inbox. */
    private void writeUntilBlocked(SocketChannel peer, ByteBuffer frames, int inputsMin) throws Exception {
        peer.configureBlocking(false);
        int refusals = 0;
        while (frames.hasRemaining() && (refusals < 300 || inbox.size() < inputsMin)) {
            refusals = peer.write(frames) == 0 ? refusals + 1 : 0;
            Thread.sleep(1);
        }
        awaitInputs(inputsMin);
        for (int seen = -1; seen != inbox.size(); Thread.sleep(100)) {
            seen = inbox.size();
        }
    }

    private static void proceed(BufferedWriter child) throws IOException {
        child.newLine();
        child.flush();
    }

    private void awaitInputs(int count) throws InterruptedException {
        while (inbox.size() < count) {
            Thread.sleep(1);
        }
    }

    private static ControlFrame heartbeat() {
        return ControlFrame.newBuilder()
                .setHeartbeat(Heartbeat.newBuilder().setSequence(1))
                .build();
    }

    private static ControlFrame sized(int textBytes) {
        return ControlFrame.newBuilder()
                .setGoodbye(Goodbye.newBuilder().setSentence("x".repeat(textBytes)))
                .build();
    }
}
