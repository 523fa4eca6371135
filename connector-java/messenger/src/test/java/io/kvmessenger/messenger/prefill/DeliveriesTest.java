package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.CountingTally;
import io.kvmessenger.messenger.RecordingTransferEngine;
import io.kvmessenger.messenger.SilentEngine;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.util.AbstractList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What a duty cycle looks at of a prompt of which nothing new can be sent. */
class DeliveriesTest {
    private static final TransferKey TRANSFER = new TransferKey("t", "");
    private static final int LAYERS = 60;
    private static final int PAGE_TOKENS = 2;
    private static final int PROMPT_TOKENS = 8;
    private static final int[] PAGES = {3, 2, 1, 0};
    private static final int CYCLES = 1_000;

    private final RecordingTransferEngine transfer = new RecordingTransferEngine();
    private final KvGeometry geometry = geometry();
    private final LayerWriter writer = new LayerWriter(geometry, List.of(memory()), List.of(), transfer);
    private final Prefill prefill = new Prefill("r", TRANSFER, geometry.groups(), 0);
    private int visits;
    private final Delivery delivery = granted();
    private final Wire wire = new Wire();
    private final Sessions sessions = new Sessions(
            new MessengerIdentity("p", 1, new byte[0]),
            wire,
            new ProtocolLimits(1000, 1000, 500, 100, 300),
            new CountingTally(),
            new SplittableRandom(1),
            new PeerWarnings(new SilentEngine(), () -> 0));
    private final Replies replies = new Replies(sessions, new CountingTally());
    private final Deliveries deliveries = deliveries();

    private Deliveries deliveries() {
        ProtocolLimits limits = new ProtocolLimits(1, 1, 1, 1, 1);
        KvPorts ports = new KvPorts(
                transfer,
                new SilentEngine(),
                null,
                null,
                new CountingTally(),
                new History(),
                () -> 1,
                new SplittableRandom(1));
        Meetings meetings = new Meetings(false, limits);
        PrefillEnds ends = new PrefillEnds(meetings, new Fences(false), ports);
        return new Deliveries(writer, sessions, replies, ports, limits, ends);
    }

    private static KvGeometry geometry() {
        List<LayerGeometry> layers = IntStream.range(0, LAYERS)
                .mapToObj(i -> new LayerGeometry("layers." + i, i * 8L, LAYERS * 8L, PAGE_TOKENS * 2))
                .toList();
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, PAGE_TOKENS, PageLayout.HND, 2, PAGES.length);
        return new KvGeometry("m", new Sharding(1, 1, 1), List.of(group), List.of(new RankGeometry(0, 0, layers)));
    }

    private RankMemory memory() {
        return new RankMemory(List.of(transfer.register(Memory.host(MemorySegment.ofArray(new byte[LAYERS * 32])))));
    }

    private Delivery granted() {
        DecoderSession session = Decoders.attached(geometry, geometry);
        session.peerCache().attached(List.of(memory().descriptors()), List.of());
        session.peerReady = true;
        prefill.promptTokens = PROMPT_TOKENS;
        prefill.pages.getFirst().add(new ChunkPages(0, PAGES));
        PageGrant grant = new PageGrant(
                session, 1, TRANSFER, Imm.of(3, 1), PROMPT_TOKENS, 0, List.of(PAGES), ContextSlots.NO_SLOT, 0, 0, 0, 0);
        List<PieceRoute> routes = writer.routesFor(grant);
        return new Delivery(prefill, grant, new AbstractList<>() {
            @Override
            public PieceRoute get(int index) {
                visits++;
                return routes.get(index);
            }

            @Override
            public int size() {
                return routes.size();
            }
        });
    }

    private void step(StepInFlight step, int endToken) {
        prefill.begin(new EngineCommand.Chunk("r", "t", PROMPT_TOKENS, 0, 0, endToken, 0, PAGES), step, LAYERS, 1);
    }

    private void submitAll() {
        while (deliveries.advance(delivery) > 0) {}
    }

    @Test
    void shouldLookAtNoLayerAgainUntilOneBecomesReadable() {
        StepInFlight step = new StepInFlight(1, 0, 0);
        step(step, PROMPT_TOKENS);
        step.onReadable(7);
        submitAll();
        assertThat(transfer.requests).as("writes of the first layers").hasSize(7);
        int before = visits;
        for (int cycle = 0; cycle < CYCLES; cycle++) {
            assertThat(deliveries.advance(delivery)).isZero();
        }
        assertThat(visits - before)
                .as("of %d layers in %d duty cycles", LAYERS, CYCLES)
                .isZero();
        step.onReadable(8);
        submitAll();
        assertThat(transfer.requests).hasSize(8);
    }

    /** What is offered could be computed by the peer as well. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldWriteWhatIsOfferedAfterHandOvers(boolean offered) {
        if (offered) {
            prefill.offerTo(delivery.grant.session());
        }
        delivery.grant.session().peer = transfer.connect(null, new byte[0], "decoder");
        writer.allow(delivery, null);
        assertThat(transfer.allowed).containsExactly(offered ? TrafficClass.NORMAL : TrafficClass.URGENT);
    }

    /** Its bytes may be on their way: "nothing will follow" would be a promise that this side cannot keep. */
    @Test
    void shouldNeverSayThatNothingFollowsAWriteThatFailed() {
        delivery.grant.session().agreesUpon(ProtocolLimits.PROTOCOL_VERSION);
        delivery.stop(new Stop(Reason.PATH_LOST, "lost"));
        delivery.mayStillLand = true;
        replies.answer(delivery);
        assertThat(wire.sent).isEmpty();

        delivery.mayStillLand = false;
        replies.answer(delivery);
        assertThat(wire.sent).singleElement().matches(ControlFrame::hasCannotDeliver);
    }

    /** The session ends with such a write. What it would say must not hang on that. */
    @Test
    void shouldNotAnswerForAWriteThatFailedWhileItsSessionStands() {
        delivery.grant.session().agreesUpon(ProtocolLimits.PROTOCOL_VERSION);
        prefill.deliveries.add(delivery);
        prefill.settledTokens = PROMPT_TOKENS;
        submitAll();
        while (delivery.writesInFlight > 1) {
            deliveries.onWriteCompleted(transfer.submitted.removeFirst());
        }
        deliveries.onWriteFailed(transfer.submitted.removeFirst(), TransferFault.DISCONNECTED, "reset");

        assertThat(delivery.stopped()).isTrue();
        assertThat(wire.sent).isEmpty();
    }

    @Test
    void shouldSendWhatEachKindOfProgressMakesReadable() {
        prefill.settledTokens = PAGE_TOKENS;
        submitAll();
        assertThat(transfer.requests).as("a page that was cached").hasSize(LAYERS);
        StepInFlight first = new StepInFlight(1, 0, 0);
        step(first, 2 * PAGE_TOKENS);
        submitAll();
        first.onReadable(1);
        submitAll();
        assertThat(transfer.requests).as("the next page of a layer").hasSize(LAYERS + 1);
        StepInFlight second = new StepInFlight(2, LAYERS, 0);
        step(second, PROMPT_TOKENS);
        submitAll();
        second.onReadable(2);
        submitAll();
        assertThat(transfer.requests).as("of a second step").hasSize(LAYERS + 3);
        prefill.stepOver(first, 1);
        submitAll();
        prefill.stepOver(second, 1);
        submitAll();
        assertThat(delivery.everythingSubmitted()).isTrue();
    }
}
