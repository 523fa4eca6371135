package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.kv.KvDescription;
import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.GeometryWire;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.messenger.wire.Heartbeat;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.SubjectDescription;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import java.lang.management.ManagementFactory;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A prefiller with as many decoders as it serves, in virtual time: what they cost at rest. docs/sizing.md quotes what it prints. */
class ManyPeersTest extends MessengerPair {
    private static final int NONCE_LENGTH_BYTES = 32;
    /** Of the decoder that is there already. */
    private static final long FIRST_LINK = Wire.DIALLED_LINK;

    private static final int BEATS = 600;
    private static final int IDLE_CYCLES = 200_000;
    private static final int MANY_DECODERS = 2_000;
    private static final int ATTACHED_TOGETHER = 8;

    private void attach(long link) {
        Messenger messenger = prefiller.messenger;
        messenger.onLinkOpened(link, true, "there:" + link);
        Hello hello = Hello.newBuilder()
                .setProtocolVersion(ProtocolLimits.PROTOCOL_VERSION)
                .setEngineId("decoder-" + link)
                .setNonce(ByteString.copyFrom(new byte[NONCE_LENGTH_BYTES]))
                .setSubject(SubjectDescription.newBuilder()
                        .setSubjectKind(KvDescription.KIND)
                        .setDescription(GeometryWire.encode(Geometries.of("m")).toByteString()))
                .build();
        messenger.onFrame(link, ControlFrame.newBuilder().setHello(hello).build());
        Attach.Builder attach = Attach.newBuilder();
        AttachWire.encode(
                attach,
                new EngineAddress(List.of(new EngineAddress.TransportAddress("tcp", "127.0.0.1:1"))),
                ByteString.copyFrom(new byte[Admission.KEY_LENGTH_BYTES]),
                List.of(List.of(decoder.region.descriptor())));
        messenger.onFrame(link, ControlFrame.newBuilder().setAttach(attach).build());
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 64, ProtocolLimits.DECODERS_MAX})
    void shouldServeThemAtRest(int peers) {
        keepAll();
        for (long link = FIRST_LINK + 1; link < FIRST_LINK + peers; link++) {
            attach(link);
        }
        prefiller.messenger.doWork();
        prefiller.wire.take();
        double idleNs = nsOfAnIdleCycle();

        List<ControlFrame> beats = List.of();
        long cycles = 0;
        long sent = 0;
        long endNs = nowNs + BEATS * LIMITS.heartbeatNs();
        long cpuNs = -ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        while (nowNs < endNs) {
            nowNs = Math.max(nowNs + 1, prefiller.messenger.nextDeadlineNs());
            for (long link = FIRST_LINK; link < FIRST_LINK + peers; link++) {
                prefiller.messenger.onFrame(link, heartbeat(cycles));
            }
            prefiller.messenger.doWork();
            beats = prefiller.wire.take();
            sent += beats.size();
            cycles++;
        }
        cpuNs += ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        assertThat(beats).allMatch(ControlFrame::hasHeartbeat);
        assertThat(sent).isBetween((BEATS - 1L) * peers, (BEATS + 1L) * peers);
        System.out.printf(
                "%d peers at rest: a duty cycle without work %.0f ns; heartbeats to and fro, each %d ns of CPU%n",
                peers, idleNs, cpuNs / (2 * sent));
    }

    private static ControlFrame heartbeat(long sequence) {
        return ControlFrame.newBuilder()
                .setHeartbeat(Heartbeat.newBuilder().setSequence(sequence))
                .build();
    }

    /** After it has been compiled. */
    private double nsOfAnIdleCycle() {
        long startedNs = 0;
        for (int cycle = -5 * IDLE_CYCLES; cycle < IDLE_CYCLES; cycle++) {
            if (cycle == 0) {
                startedNs = System.nanoTime();
            }
            prefiller.messenger.doWork();
            prefiller.messenger.nextDeadlineNs();
        }
        return (double) (System.nanoTime() - startedNs) / IDLE_CYCLES;
    }

    /** Sides of which the prefiller asks no decoder to leave. */
    private void keepAll() {
        begin(LIMITS.with(Capacities.PRODUCTION.withDecodersKept(ProtocolLimits.DECODERS_MAX)));
    }

    private void begin(ProtocolLimits other) {
        limits = other;
        prefiller = new Side("prefiller", 1, 0);
        decoder = new Side("decoder", 2, 0);
        fetch("warm-up", 1, 0);
        meet();
    }

    /** What is kept for a decoder is kept while it is attached: one that has left costs nothing. */
    @Test
    void shouldKeepNothingOfDecodersThatHaveLeft() {
        begin(new ProtocolLimits(1_000_000, 1_000_000, 500, 100, 1_000_000));
        Messenger messenger = prefiller.messenger;
        long none = usedHeapBytes();
        long link = FIRST_LINK;
        for (int i = 0; i < MANY_DECODERS; i++) {
            attach(++link);
            nowNs += i % ATTACHED_TOGETHER == 0 ? limits.heartbeatNs() : 0; // which is how often it asks idle ones
            messenger.doWork();
            leave();
        }
        nowNs += limits.heartbeatNs();
        messenger.doWork();
        leave();
        long many = usedHeapBytes();
        int attached = prefiller.cache.describe(0).peers().size();
        System.out.printf(
                "%d decoders came, %d stayed: %d bytes of heap for each that stayed, %d for each that came%n",
                MANY_DECODERS, attached, (many - none) / attached, (many - none) / MANY_DECODERS);
        assertThat(attached).isEqualTo(ProtocolLimits.DECODERS_KEPT);
        assertThat(prefiller.tally.sum(MessengerMetric.LINKS_LOST)).isZero();
        assertThat(prefiller.tally.sum(MessengerMetric.LINKS_REFUSED)).isZero();
        assertThat(prefiller.transfer.connected).hasSize(MANY_DECODERS + 1);
        assertThat(prefiller.transfer.disconnected).hasSize(MANY_DECODERS + 1 - attached);
    }

    /** Those that are asked to leave do. */
    private void leave() {
        for (int i = 0; i < prefiller.wire.sent.size(); i++) {
            if (prefiller.wire.sent.get(i).getHeartbeat().hasLeaveAfterFrames()) {
                prefiller.messenger.onFrame(
                        prefiller.wire.links.get(i),
                        ControlFrame.newBuilder()
                                .setGoodbye(Goodbye.newBuilder().setIdle(true))
                                .build());
            }
        }
        prefiller.wire.take();
    }

    private static long usedHeapBytes() {
        System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }
}
