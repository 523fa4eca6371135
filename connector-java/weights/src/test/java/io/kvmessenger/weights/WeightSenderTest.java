package io.kvmessenger.weights;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.ControlNetwork;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.Arena;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Of each server that an update is sent to, the trainer hears an end, whatever ends the update and at which state. */
final class WeightSenderTest {
    private static final long LINK = 1;
    private static final String ATTACHED = "one";
    private static final String ABSENT = "two";
    private static final LandingParts PARTS = new LandingParts(8, 8);
    private static final ByteString MANIFEST = ByteString.copyFrom(new byte[32]);
    private static final String WHY = "it ends";
    /** Each limit of a session is over. */
    private static final long LATER_NS = 100_000;

    private enum Stage {
        DIGESTED,
        ANNOUNCED,
        WRITING
    }

    private enum End {
        TRANSFER_ENGINE,
        CONTROL_NETWORK,
        SHUT_DOWN,
        LINK,
        DATA_PATHS,
        WRITE
    }

    private record Case(Stage stage, End end) {}

    static Stream<Case> cases() {
        return Stream.of(Stage.values())
                .flatMap(stage -> Stream.of(End.values()).map(end -> new Case(stage, end)))
                .filter(each -> each.stage == Stage.WRITING || each.end != End.WRITE);
    }

    private final List<String> heard = new ArrayList<>();
    private final List<Long> submitted = new ArrayList<>();
    private final Wire senderWire = new Wire();
    private final Wire hostWire = new Wire();
    private Peer peer = proxy(Peer.class, (method, given) -> null);
    private final SubjectPorts senderPorts = ports("sender", senderWire, senderEngine());
    private final SubjectPorts hostPorts = ports("host", hostWire, hostEngine());
    private final WeightSender sender = new WeightSender(MANIFEST, region(), PARTS, senderPorts, new Heard());
    private final WeightReceiver host =
            new WeightReceiver(MANIFEST, region(), PARTS, hostPorts, proxy(ReceiverEvents.class, (m, given) -> null));

    @ParameterizedTest
    @MethodSource("cases")
    void shouldHearOfEachServerOnce(Case given) {
        attach();
        bring(given.stage);
        int writes = submitted.size();
        assertThat(writes > 0).isEqualTo(given.stage == Stage.WRITING);

        end(given.end);
        if (given.end != End.TRANSFER_ENGINE && writes > 0) {
            assertThat(heard).as("a write may read the memory").noneMatch(event -> event.endsWith(ATTACHED));
        }
        while (given.end != End.TRANSFER_ENGINE && !submitted.isEmpty()) {
            sender.onWriteFailed(submitted.removeFirst(), TransferFault.DISCONNECTED, "closed");
        }
        cycle();
        senderPorts.sessions().tick(LATER_NS);

        assertThat(heard.stream().filter(event -> event.endsWith(ATTACHED)).findFirst())
                .as("of %s", heard)
                .hasValueSatisfying(event -> assertThat(event).matches("(refused 5|lost) " + ATTACHED));
        assertThat(heard).containsOnlyOnce("refused 5 " + ABSENT);
        assertThat(sender.held()).allSatisfy((name, count) -> assertThat(count).isZero());
        assertThat(sender.finished()).isTrue();
    }

    /** How often a server dials, when, and whether the earlier session has ended before the next one attaches. */
    @ParameterizedTest
    @CsvSource({"2, false, false", "2, true, false", "3, false, false", "2, false, true", "3, true, true"})
    void shouldHaveOneSessionOfEachServer(int dials, boolean amidAnUpdate, boolean endsBefore) {
        attach();
        if (amidAnUpdate) {
            bring(Stage.WRITING);
        }
        for (long link = LINK + 1; link < LINK + dials; link++) {
            if (endsBefore) {
                senderPorts.sessions().onLinkClosed(link - 1, WHY);
            }
            peer = proxy(Peer.class, (method, given) -> null);
            hostWire.link = link;
            host.dial("there", 7, ATTACHED, "");
            senderPorts.sessions().onLinkOpened(link, true, "here:1", 0);
            hostPorts.sessions().onLinkOpened(link, false, "there:7", 0);
            carry();
            sender.onPeerReady(peer);
        }
        while (!submitted.isEmpty()) {
            sender.onWriteFailed(submitted.removeFirst(), TransferFault.DISCONNECTED, "closed");
        }
        long losses =
                heard.stream().filter(event -> event.equals("lost " + ATTACHED)).count();
        assertThat(losses).as("of %s", heard).isEqualTo(endsBefore ? dials - 1 : amidAnUpdate ? 1 : 0);
        assertThat(senderWire.closed).as("sessions of the one server").hasSize(endsBefore ? 0 : dials - 1);
        heard.clear();
        sender.send(6, 2, List.of(ATTACHED));
        cycle();
        assertThat(heard).as("the last session is written to").isEmpty();
        assertThat(sender.held()).containsEntry("updatesLeaving", 1);
    }

    private void attach() {
        senderPorts.sessions().carry(sender);
        hostPorts.sessions().carry(host);
        host.dial("there", 7, ATTACHED, "");
        senderPorts.sessions().onLinkOpened(LINK, true, "here:1", 0);
        hostPorts.sessions().onLinkOpened(LINK, false, "there:7", 0);
        carry();
        sender.onPeerReady(peer);
        assertThat(heard).containsExactly("attached " + ATTACHED);
        heard.clear();
    }

    private void bring(Stage stage) {
        sender.send(5, 1, List.of(ATTACHED, ABSENT));
        if (stage != Stage.DIGESTED) {
            cycle();
        }
        if (stage == Stage.WRITING) {
            carry();
        }
    }

    private void end(End end) {
        Sessions sessions = senderPorts.sessions();
        switch (end) {
            case TRANSFER_ENGINE -> {
                sender.shutDown(WHY);
                sessions.endAll(WHY);
                sender.onTransferEnded(WHY);
            }
            case CONTROL_NETWORK -> {
                sender.shutDown(WHY);
                sessions.endAll(WHY);
                sender.onControlEnded(WHY);
            }
            case SHUT_DOWN -> sender.shutDown(WHY);
            case LINK -> sessions.onLinkClosed(LINK, WHY);
            case DATA_PATHS -> {
                sender.onPeerLost(peer, TransferFault.COPY_FAILED, WHY);
                cycle();
            }
            case WRITE -> sender.onWriteFailed(submitted.removeFirst(), TransferFault.COPY_FAILED, WHY);
        }
    }

    private void cycle() {
        sender.duties().forEach(duty -> duty.run(0));
    }

    private void carry() {
        while (!senderWire.sent.isEmpty() || !hostWire.sent.isEmpty()) {
            senderWire.take().forEach(sent -> hostPorts.sessions().onFrame(sent.link, sent.frame, 0));
            hostWire.take().forEach(sent -> senderPorts.sessions().onFrame(sent.link, sent.frame, 0));
        }
    }

    // ---- ports

    private record Sent(long link, ControlFrame frame) {}

    /** Keeps frames until the test carries them. */
    private static final class Wire implements ControlNetwork {
        final Deque<Sent> sent = new ArrayDeque<>();
        final List<Long> closed = new ArrayList<>();
        /** Of the next dial. */
        long link = LINK;

        List<Sent> take() {
            List<Sent> all = List.copyOf(sent);
            sent.clear();
            return all;
        }

        @Override
        public long dial(String host, int port) {
            return link;
        }

        @Override
        public void send(long link, ControlFrame frame) {
            sent.add(new Sent(link, frame));
        }

        @Override
        public void trust(long link) {}

        @Override
        public void close(long link) {
            closed.add(link);
        }
    }

    private static final class NoTally implements Tally {
        @Override
        public void add(MessengerMetric metric, long count) {}

        @Override
        public void add(MessengerMetric metric, CountedReason reason) {}

        @Override
        public void set(MessengerMetric metric, long value) {}

        @Override
        public void observe(MessengerMetric metric, double value) {}
    }

    private final class Heard implements SenderEvents {
        @Override
        public void attached(String ticket, String name) {
            heard.add("attached " + ticket);
        }

        @Override
        public void landed(String ticket, long updateId) {
            heard.add("landed " + updateId + " " + ticket);
        }

        @Override
        public void applied(String ticket, long updateId) {
            heard.add("applied " + updateId + " " + ticket);
        }

        @Override
        public void refused(String ticket, long updateId, String reason) {
            heard.add("refused " + updateId + " " + ticket);
        }

        @Override
        public void lost(String ticket, String reason) {
            heard.add("lost " + ticket);
        }
    }

    private static Region region() {
        return new LandedRegion(Arena.ofAuto().allocate(3 * PARTS.writeBytes()));
    }

    private static SubjectPorts ports(String name, ControlNetwork network, TransferEngine engine) {
        ProtocolLimits limits = new ProtocolLimits(1000, 1000, 1000, 1000, 1000);
        Tally tally = new NoTally();
        SplittableRandom random = new SplittableRandom(name.length());
        PeerWarnings warnings = new PeerWarnings((level, message) -> {}, () -> 0);
        Sessions sessions = new Sessions(
                new MessengerIdentity(name, name.length(), new byte[0]), network, limits, tally, random, warnings);
        return new SubjectPorts(sessions, engine, null, limits, tally, () -> 0, random, Runnable::run);
    }

    private TransferEngine senderEngine() {
        RemoteWindow window = proxy(RemoteWindow.class, (method, given) -> TrafficClass.BULK);
        return proxy(TransferEngine.class, (method, given) -> switch (method) {
            case "connect" -> peer;
            case "allow" -> window;
            case "submit" -> {
                submitted.add((Long) given[2]);
                yield TransferEngine.ACCEPTED;
            }
            default -> null;
        });
    }

    private static TransferEngine hostEngine() {
        ImmWindow window = proxy(ImmWindow.class, (method, given) -> method.equals("imm") ? (Object) 7 : (Object) 3L);
        return proxy(TransferEngine.class, (method, given) -> switch (method) {
            case "admit" -> new Admission(1, "sender", new byte[Admission.KEY_LENGTH_BYTES]);
            case "address" -> new EngineAddress(List.of(new EngineAddress.TransportAddress("tcp", "127.0.0.1:1")));
            case "openWindow" -> window;
            default -> null;
        });
    }

    private interface Answer {
        Object to(String method, Object[] given);
    }

    private static <T> T proxy(Class<T> port, Answer answer) {
        return port.cast(Proxy.newProxyInstance(
                port.getClassLoader(), new Class<?>[] {port}, (self, method, given) -> switch (method.getName()) {
                    case "hashCode" -> System.identityHashCode(self);
                    case "equals" -> self == given[0];
                    case "toString" -> port.getSimpleName();
                    default -> answer.to(method.getName(), given);
                }));
    }
}
