package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.RecordingTransferEngine;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class LayerWriterTest {
    private static final TransferKey TRANSFER = new TransferKey("t", "");
    private static final int PAGE_COUNT = 8;
    private static final int LAYER_COUNT = 3;
    private static final int PROMPT_TOKENS = 14;
    private static final int NO_SLOT = ContextSlots.NO_SLOT;
    private static final int IMM = Imm.of(3, 1);

    private final RecordingTransferEngine transfer = new RecordingTransferEngine();

    /** A byte a token, all layers of a page side by side. */
    private static KvGeometry geometry(PageLayout layout, int pageTokens, int tpSize) {
        return geometry(layout, pageTokens, tpSize, PAGE_COUNT, 1);
    }

    private static KvGeometry latent(int pageTokens, int pageCount, int tokenBytes) {
        return geometry(PageLayout.LATENT, pageTokens, 1, pageCount, tokenBytes);
    }

    private static KvGeometry geometry(PageLayout layout, int pageTokens, int tpSize, int pageCount, int tokenBytes) {
        Sharding sharding = new Sharding(tpSize, 1, 1);
        int headCount = layout.equals(PageLayout.LATENT) ? 1 : 2;
        List<RankGeometry> ranks = new ArrayList<>();
        for (int tpRank = 0; tpRank < tpSize; tpRank++) {
            int pageBytes = pageTokens * sharding.headsPerRank(headCount) * tokenBytes;
            List<LayerGeometry> layers = IntStream.range(0, LAYER_COUNT)
                    .mapToObj(i -> new LayerGeometry(
                            "layers." + i, (long) i * pageBytes, (long) LAYER_COUNT * pageBytes, pageBytes))
                    .toList();
            ranks.add(new RankGeometry(tpRank, 0, layers));
        }
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, pageTokens, layout, headCount, pageCount);
        return new KvGeometry("m", sharding, List.of(group), ranks);
    }

    private RankMemory memory() {
        return new RankMemory(List.of(transfer.register(Memory.host(MemorySegment.ofArray(new byte[1024])))));
    }

    private LayerWriter writer(KvGeometry geometry) {
        return new LayerWriter(
                geometry, geometry.ranks().stream().map(rank -> memory()).toList(), List.of(), transfer);
    }

    private Delivery granted(LayerWriter writer, KvGeometry own, KvGeometry peer, int firstToken) {
        return granted(writer, own, peer, firstToken, PROMPT_TOKENS);
    }

    private Delivery granted(LayerWriter writer, KvGeometry own, KvGeometry peer, int firstToken, int promptTokens) {
        DecoderSession session = Decoders.attached(own, peer);
        session.peerCache()
                .attached(
                        peer.ranks().stream()
                                .map(rank -> memory().descriptors())
                                .toList(),
                        List.of());
        Prefill prefill = new Prefill("r", TRANSFER, own.groups(), 0);
        prefill.promptTokens = promptTokens;
        prefill.pages.getFirst().add(new ChunkPages(0, pages(own, 0, promptTokens)));
        prefill.settledTokens = promptTokens;
        PageGrant grant = new PageGrant(
                session,
                1,
                TRANSFER,
                IMM,
                promptTokens,
                firstToken,
                List.of(pages(peer, firstToken, promptTokens)),
                NO_SLOT,
                0,
                0,
                0,
                0);
        return new Delivery(prefill, grant, writer.routesFor(grant));
    }

    /** From the last page of the cache downwards: no two follow each other. */
    private static int[] pages(KvGeometry side, int firstToken, int promptTokens) {
        KvGroup group = side.groups().getFirst();
        int lastPage = group.pageCount() - 1;
        int count = group.pagesFor(firstToken, promptTokens);
        return IntStream.range(0, count).map(i -> lastPage - i).toArray();
    }

    private PagedWrites onlyRequest() {
        assertThat(transfer.requests).hasSize(1);
        return (PagedWrites) transfer.requests.getFirst();
    }

    private static List<Long> offsets(PageList list) {
        return IntStream.range(0, list.count()).mapToObj(list::offsetOf).toList();
    }

    @Test
    void shouldJoinLayersThatLieSideBySideOnceAllAreComplete() {
        KvGeometry side = geometry(PageLayout.LATENT, 4, 1);
        LayerWriter writer = writer(side);
        Delivery delivery = granted(writer, side, side, 0);
        assertThat(writer.joinableCount(delivery, 0, 4)).isEqualTo(LAYER_COUNT);
        assertThat(writer.submit(delivery, 0, LAYER_COUNT, 4)).isEqualTo(TransferEngine.ACCEPTED);
        assertThat(onlyRequest().weight()).isEqualTo(LAYER_COUNT);
        assertThat(onlyRequest().pageBytes()).isEqualTo(LAYER_COUNT * 4);
        assertThat(offsets(onlyRequest().sourcePages())).containsExactly(84L, 72L, 60L, 48L);
        assertThat(delivery.nextPage).containsOnly(4);
        assertThat(delivery.everythingSubmitted()).isTrue();
        LayerWrite write = writer.complete(transfer.submitted.getFirst().intValue());
        assertThat(write.bytes).isEqualTo(LAYER_COUNT * 16L);
        assertThat(write.pageCount).isEqualTo(LAYER_COUNT * 4);
    }

    @Test
    void shouldJoinOnlyLayersThatTheForwardPassHasComputed() {
        KvGeometry side = geometry(PageLayout.LATENT, 4, 1);
        LayerWriter writer = writer(side);
        Delivery delivery = granted(writer, side, side, 0);
        delivery.prefill.settledTokens = 0;
        StepInFlight step = new StepInFlight(1, 0, 0);
        delivery.prefill.begin(
                new EngineCommand.Chunk("r", TRANSFER.id(), 16, 0, 0, 8, 0, new int[0]), step, LAYER_COUNT, 0);
        step.onReadable(1);
        assertThat(writer.joinableCount(delivery, 0, 2)).isEqualTo(1);
        step.onReadable(2);
        assertThat(writer.joinableCount(delivery, 0, 2)).isEqualTo(2);
        delivery.nextPage[1] = 1;
        step.onReadable(3);
        assertThat(writer.joinableCount(delivery, 0, 2)).isEqualTo(1);
    }

    @Test
    void shouldJoinPagesUpToABoundAndNoFurther() {
        int halfTokenBytes = LayerWriter.JOINED_BYTES_MAX / 2 / 4;
        KvGeometry half = latent(4, PAGE_COUNT, halfTokenBytes);
        LayerWriter writer = writer(half);
        Delivery delivery = granted(writer, half, half, 0);
        assertThat(writer.joinableCount(delivery, 0, 4)).as("two halves").isEqualTo(2);
        writer.submit(delivery, 0, 2, 4);
        assertThat(onlyRequest().pageBytes()).isEqualTo(LayerWriter.JOINED_BYTES_MAX);

        KvGeometry more = latent(4, PAGE_COUNT, halfTokenBytes + 1);
        LayerWriter other = writer(more);
        assertThat(other.joinableCount(granted(other, more, more, 0), 0, 4))
                .as("two that are more than halves")
                .isEqualTo(1);
    }

    @Test
    void shouldSubmitManyPagesInRequestsOfBoundedSize() {
        int pageCount = 2 * LayerWriter.PARTS_PER_WRITE_MAX + 1;
        KvGeometry side = latent(4, pageCount, 1);
        LayerWriter writer = writer(side);
        Delivery delivery = granted(writer, side, side, 0, pageCount * 4);
        assertThat(writer.submit(delivery, 0, LAYER_COUNT, pageCount)).isEqualTo(TransferEngine.ACCEPTED);
        assertThat(partCounts()).containsExactly(LayerWriter.PARTS_PER_WRITE_MAX, LayerWriter.PARTS_PER_WRITE_MAX, 1);
        assertThat(delivery.everythingSubmitted()).isTrue();
    }

    @Test
    void shouldCountTheBoundInPartsWherePagesAreCut() {
        int pageCount = LayerWriter.PARTS_PER_WRITE_MAX + 1;
        KvGeometry own = latent(8, pageCount, 1);
        KvGeometry peer = latent(4, 2 * pageCount, 1);
        LayerWriter writer = writer(own);
        Delivery delivery = granted(writer, own, peer, 0, pageCount * 8);
        writer.submit(delivery, 0, 1, pageCount);
        assertThat(partCounts()).containsExactly(LayerWriter.PARTS_PER_WRITE_MAX, LayerWriter.PARTS_PER_WRITE_MAX, 2);
    }

    private List<Integer> partCounts() {
        return transfer.requests.stream()
                .map(request -> ((PagedWrites) request).sourcePages().count())
                .toList();
    }

    @Test
    void shouldFillLargerPagesPartByPart() {
        KvGeometry own = geometry(PageLayout.LATENT, 4, 1);
        KvGeometry peer = geometry(PageLayout.LATENT, 8, 1);
        LayerWriter writer = writer(own);
        Delivery delivery = granted(writer, own, peer, 8);
        assertThat(writer.unfit(delivery.grant, false)).isEmpty();
        assertThat(writer.joinableCount(delivery, 0, 4)).isEqualTo(1);
        writer.submit(delivery, 0, 1, 4);
        assertThat(offsets(onlyRequest().sourcePages())).containsExactly(60L, 48L);
        assertThat(offsets(onlyRequest().targetPages())).containsExactly(168L, 172L);
    }

    @Test
    void shouldCutLargerPagesAndBeginInTheMiddleOfOne() {
        KvGeometry own = geometry(PageLayout.LATENT, 8, 1);
        KvGeometry peer = geometry(PageLayout.LATENT, 4, 1);
        LayerWriter writer = writer(own);
        Delivery delivery = granted(writer, own, peer, 4);
        assertThat(writer.unfit(delivery.grant, false)).isEmpty();
        writer.submit(delivery, 0, 1, 2);
        assertThat(offsets(onlyRequest().sourcePages())).containsExactly(172L, 144L, 148L);
        assertThat(offsets(onlyRequest().targetPages())).containsExactly(84L, 72L, 60L);
    }

    @Test
    void shouldWriteSplitNhdPagesTokenByTokenUpToTheLastOneAndCountThat() {
        KvGeometry own = geometry(PageLayout.NHD, 4, 1);
        KvGeometry peer = geometry(PageLayout.NHD, 4, 2);
        LayerWriter writer = writer(own);
        Delivery delivery = granted(writer, own, peer, 12);
        assertThat(delivery.routes).hasSize(2 * LAYER_COUNT);
        writer.submit(delivery, 0, writer.joinableCount(delivery, 0, 4), 4);
        assertThat(offsets(onlyRequest().sourcePages())).containsExactly(96L, 98L);
        assertThat(offsets(onlyRequest().targetPages())).containsExactly(84L, 85L);
        assertThat(writer.complete(transfer.submitted.getFirst().intValue()).stridedPieceCount)
                .isEqualTo(2);
    }

    @Test
    void shouldSayThatAGrantOfAnotherPageCountDoesNotFit() {
        KvGeometry own = geometry(PageLayout.LATENT, 4, 1);
        KvGeometry peer = geometry(PageLayout.LATENT, 8, 1);
        LayerWriter writer = writer(own);
        PageGrant right = granted(writer, own, peer, 0).grant;
        PageGrant wrong = new PageGrant(
                right.session(), 1, TRANSFER, IMM, PROMPT_TOKENS, 0, List.of(new int[4]), NO_SLOT, 0, 0, 0, 0);
        assertThat(writer.unfit(wrong, false))
                .isEqualTo("the grant of transfer t has 4 pages for tokens 0 to 14, which need 2");
    }

    /** A write that is counted for ever would keep a messenger from its end. */
    @Test
    void shouldCountNoWriteThatCannotBeDescribed() {
        KvGeometry side = geometry(PageLayout.LATENT, 4, 1);
        LayerWriter writer = writer(side);
        PageGrant grant = granted(writer, side, side, 0).grant;
        Prefill withoutPages = new Prefill("r", TRANSFER, side.groups(), 0);
        withoutPages.promptTokens = PROMPT_TOKENS;
        Delivery delivery = new Delivery(withoutPages, grant, writer.routesFor(grant));

        assertThatThrownBy(() -> writer.submit(delivery, 0, LAYER_COUNT, 4))
                .isInstanceOf(IndexOutOfBoundsException.class);
        assertThat(writer.inFlightCount()).isZero();
        assertThat(delivery.writesInFlight).isZero();
    }
}
