package io.kvmessenger.testkit.echo;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The smallest subject that moves bytes. A region has two halves: what others may ask for, and where answers land. A
 * dialler asks, the listener writes the beginning of its first half to the beginning of the dialler's second half, and
 * each ask ends with one event. It has no KV, and no part of the KV halves.
 *
 * <p>Owned by the messenger's thread.
 */
public final class EchoSubject implements ServedSubject {
    public static final String KIND = "echo";

    private static final Roles ROLES = new Roles("echoer", "asker");
    /** When a window or a write that the engine had no room for is tried again. */
    private static final long RETRY_NS = 1_000_000;

    /** Largest delay of the end of an ask whose limit has passed. */
    private static final long REST_NS = 1_000_000_000;

    private final String word;
    private final Sessions sessions;
    private final long askLimitNs;
    private final EchoAsks asks;
    private final EchoAnswers answers;

    /** Opens a session with a listener. */
    interface Dial {
        EchoSession session();
    }

    /**
     * @param word that both sides must have: the description of the subject
     * @param askLimitNs after which an ask fails that was not answered
     */
    public EchoSubject(
            String word,
            long askLimitNs,
            Region region,
            Sessions sessions,
            TransferEngine transfer,
            EchoEvents events,
            NanoClock clock) {
        this.askLimitNs = askLimitNs;
        this.word = word;
        this.sessions = sessions;
        this.asks = new EchoAsks(region, sessions, transfer, events, clock);
        this.answers = new EchoAnswers(region, sessions, transfer, clock);
    }

    /** Asks the messenger at an address for the first bytes of its region. */
    public void ask(long id, String host, int port, int lengthBytes, long nowNs) {
        asks.ask(
                id,
                lengthBytes,
                host + ":" + port,
                () -> sessions.dial(
                        host, port, (link, peerAddress) -> new EchoSession(this, link, false, peerAddress), nowNs),
                nowNs + askLimitNs);
    }

    EchoAsks asks() {
        return asks;
    }

    EchoAnswers answers() {
        return answers;
    }

    /** Length of each half of a region. */
    static long halfBytes(RegionDescriptor region) {
        return region.lengthBytes() / 2;
    }

    /** The first bytes of a region's second half, as one page. */
    static WindowArea answerArea(RegionDescriptor region, long lengthBytes) {
        long[] length = {lengthBytes};
        return WindowArea.of(
                region, WindowRanges.ofPages(new int[] {0}, new long[] {halfBytes(region)}, length, length));
    }

    /** What is held for unfinished asks, by name. */
    public Map<String, Integer> held() {
        Map<String, Integer> held = new LinkedHashMap<>();
        held.put("asks", asks.openCount());
        held.put("asksToAnswer", answers.waitingCount());
        held.put("writesInFlight", answers.inFlightCount());
        return held;
    }

    @Override
    public String kind() {
        return KIND;
    }

    @Override
    public ByteString description() {
        return ByteString.copyFromUtf8(word);
    }

    @Override
    public Roles roles() {
        return ROLES;
    }

    @Override
    public Session accept(long link, String peerAddress) {
        return new EchoSession(this, link, true, peerAddress);
    }

    @Override
    public String broken(ControlFrame frame) {
        return switch (frame.getBodyCase()) {
            case ATTACH ->
                frame.getAttach().getSubject().size() == EchoFrames.REGION_LENGTH_BYTES
                                && frame.getAttach().getAdmissionKey().size() == Admission.KEY_LENGTH_BYTES
                        ? ""
                        : "an attachment of another length";
            case SUBJECT ->
                frame.getSubject().getPayload().size() == EchoFrames.ASK_LENGTH_BYTES
                                && EchoFrames.ask(frame).lengthBytes() > 0
                        ? ""
                        : "an ask of another length, or for nothing";
            default -> "";
        };
    }

    @Override
    public List<Duty> duties() {
        return List.of(asks::endOverdue, nowNs -> asks.request(), nowNs -> answers.writeAll());
    }

    @Override
    public CompletionHandler completions() {
        return new Completions();
    }

    @Override
    public long nextDeadlineNs(long nowNs) {
        return nowNs + (asks.waits() || answers.waits() ? RETRY_NS : REST_NS);
    }

    @Override
    public void shutDown(String reason) {
        asks.shutDown(reason);
    }

    @Override
    public boolean finished() {
        return held().values().stream().allMatch(count -> count == 0);
    }

    @Override
    public void onTransferEnded(String reason) {
        asks.onTransferEnded(reason);
    }

    @Override
    public boolean changed() {
        return false;
    }

    @Override
    public void publishGauges() {}

    /** Forwards completions to the side that they belong to. */
    private final class Completions implements CompletionHandler {
        @Override
        public void onWriteCompleted(long cookie) {
            answers.onWriteCompleted(cookie);
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            answers.onWriteFailed(cookie, fault, detail);
        }

        @Override
        public void onWindowFilled(long cookie) {
            asks.onWindowFilled(cookie);
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            asks.onWindowOvershot(cookie);
        }

        @Override
        public void onPeerReady(Peer peer) {
            answers.onPeerReady(peer);
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            answers.onPeerLost(peer, fault, detail);
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            asks.onAdmissionClosed(admission, detail);
        }

        /** Its data path is closed already, and the writer's session ends with it. */
        @Override
        public void onWriteRefused(Admission admission, String detail) {}

        @Override
        public void onMessage(Admission from, MemorySegment message) {}
    }
}
