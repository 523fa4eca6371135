package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.LayoutPlanner;
import io.kvmessenger.kvlayout.Piece;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.SourceDraw;
import io.kvmessenger.kvlayout.TransferPlan;
import io.kvmessenger.messenger.kv.KvPeer;
import io.kvmessenger.messenger.pages.GrantedRanges;
import io.kvmessenger.messenger.pages.PageLists;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.wire.PeerContextRow;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/**
 * The only translator between layout and transfer: turns "pages of a layer" into paged writes.
 *
 * <p>Owned by the messenger's thread. Writes in flight come from a pool that grows to its high-water mark and stays
 * there.
 */
public final class LayerWriter {
    /** Pages, or parts of pages, submitted in one request: bounds the work behind one completion. */
    static final int PARTS_PER_WRITE_MAX = 512;
    /** Upper bound on the bytes of joined pieces of a page, so that one write does not delay other peers for long. */
    static final int JOINED_BYTES_MAX = 8 << 20;

    private final KvGeometry geometry;
    private final List<RankMemory> memory;
    private final boolean onDevice;
    private final List<ContextRow> context;
    private final ContextKinds contextKinds;
    private final LayerOrder order;
    private final TransferEngine transfer;
    private final List<LayerWrite> writes = new ArrayList<>();
    private final List<LayerWrite> free = new ArrayList<>();
    /** The routes of a page's pieces to each decoder, in the order in which layers become readable. */
    private final Map<DecoderSession, Map<SourceDraw, List<PieceRoute>>> routes = new HashMap<>();

    /** @param memory of each rank of the geometry */
    public LayerWriter(
            KvGeometry geometry, List<RankMemory> memory, List<ContextRow> context, TransferEngine transfer) {
        this.geometry = geometry;
        this.memory = memory;
        this.onDevice = memory.stream().anyMatch(RankMemory::onDevice);
        this.context = List.copyOf(context);
        this.contextKinds = ContextRow.kinds(context);
        this.order = new LayerOrder(geometry);
        this.transfer = transfer;
    }

    int layerCount() {
        return order.layerCount();
    }

    public int inFlightCount() {
        return writes.size() - free.size();
    }

    /** The routes of a page's pieces to a decoder, in the order in which layers become readable. Cached per draw. */
    List<PieceRoute> routesFor(PageGrant grant) {
        DecoderSession session = grant.session();
        SourceDraw draw =
                SourceDraw.of(grant.transferId(), geometry, session.peerCache().geometry());
        return routes.computeIfAbsent(session, unplanned -> new HashMap<>())
                .computeIfAbsent(
                        draw,
                        unplanned -> routesTo(
                                session.peerCache().geometry(),
                                session.peerCache().regions(),
                                unplanned));
    }

    /** No grant of this session will follow. */
    void forget(DecoderSession session) {
        routes.remove(session);
    }

    private List<PieceRoute> routesTo(KvGeometry peer, List<List<RegionDescriptor>> peerRegions, SourceDraw draw) {
        TransferPlan plan = LayoutPlanner.plan(geometry, peer, draw);
        int[] inOrder = IntStream.range(0, plan.pieceCount())
                .boxed()
                .sorted(Comparator.comparingInt(i -> ordinalOf(plan.piece(i))))
                .mapToInt(i -> i)
                .toArray();
        int[] positions = new int[inOrder.length];
        for (int position = 0; position < inOrder.length; position++) {
            positions[inOrder[position]] = position;
        }
        return Arrays.stream(inOrder)
                .mapToObj(i -> {
                    int next = plan.continuation(i);
                    return route(plan.piece(i), peer, peerRegions, next < 0 ? TransferPlan.NONE : positions[next]);
                })
                .toList();
    }

    private int ordinalOf(Piece piece) {
        return order.ordinalOf(piece.sourceRankIndex(), piece.layerIndex());
    }

    private PieceRoute route(Piece piece, KvGeometry peer, List<List<RegionDescriptor>> peerRegions, int continuation) {
        LayerGeometry source =
                geometry.ranks().get(piece.sourceRankIndex()).layers().get(piece.layerIndex());
        LayerGeometry target =
                peer.ranks().get(piece.targetRankIndex()).layers().get(piece.targetLayerIndex());
        return new PieceRoute(
                piece,
                ordinalOf(piece),
                memory.get(piece.sourceRankIndex()).regions().get(source.memoryIndex()),
                source,
                peerRegions.get(piece.targetRankIndex()).get(target.memoryIndex()),
                target,
                continuation);
    }

    /**
     * Why a grant cannot be served; empty when it can.
     *
     * @param offered whether it may be of what is offered, with which no context rows go
     */
    String unfit(PageGrant grant, boolean offered) {
        KvGeometry peer = grant.session().peerCache().geometry();
        String misfit = PageLists.misfit(
                peer,
                grant.pages(),
                grant.firstToken(),
                grant.promptTokens(),
                grant.contextSlot() != ContextSlots.NO_SLOT);
        if (!misfit.isEmpty()) {
            return "the grant of transfer " + grant.transferId() + " has " + misfit;
        }
        if (grant.checksumInterval() < 0 || grant.checksumInterval() > ProtocolLimits.CHECKSUM_INTERVAL_MAX) {
            return "the grant of transfer " + grant.transferId() + " asks for a checksum of every "
                    + grant.checksumInterval() + "th page, expected at most every "
                    + ProtocolLimits.CHECKSUM_INTERVAL_MAX + "th";
        }
        if (grant.checksumInterval() > 0 && onDevice) {
            return "the grant of transfer " + grant.transferId()
                    + " asks for checksums of pages in device memory, which"
                    + " the processor cannot read: set the decoder's page_checksum to off";
        }
        if (grant.checksumInterval() > 0 && geometry.hasDividedPages()) {
            return "the grant of transfer " + grant.transferId()
                    + " asks for checksums of pages that are divided among the prefiller's ranks, which are not summed:"
                    + " set the decoder's page_checksum to off";
        }
        String outside = PageLists.outside(peer, grant.pages());
        if (!outside.isEmpty()) {
            return "the grant of transfer " + grant.transferId() + " names " + outside;
        }
        return unfitContext(grant, offered);
    }

    /** Why the context rows of a grant cannot be served; empty when they can. */
    String unfitContext(PageGrant grant, boolean offered) {
        KvPeer decoder = grant.session().peerCache();
        if (!decoder.contextKinds().equals(contextKinds)) {
            return "the decoder's context rows are ["
                    + decoder.contextKinds().describe() + "] and the prefiller's [" + contextKinds.describe()
                    + "]: start both engines with the same features";
        }
        String misfit;
        try {
            ContextChoice context = offered ? grant.context() : grant.contextAsked();
            misfit = PeerContextRow.misfit(decoder.context(), context, grant.contextSlot());
        } catch (IllegalArgumentException e) {
            misfit = e.getMessage();
        }
        return misfit.isEmpty() ? "" : "the grant of transfer " + grant.transferId() + " names " + misfit;
    }

    /**
     * The memory that the grant lets this side write to: exactly the granted pages, on every rank. Computed only when
     * its prefill is there, since it is larger than the grant, of which many may wait.
     *
     * @throws IllegalArgumentException with the reason if the area is invalid, for example when a page is named twice
     */
    static WindowArea area(PageGrant grant) {
        KvPeer decoder = grant.session().peerCache();
        try {
            return GrantedRanges.of(
                    decoder.geometry(),
                    decoder.regions(),
                    grant.pages(),
                    PeerContextRow.parts(decoder.context(), grant.context(), grant.contextSlot()));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    "the grant of transfer " + grant.transferId() + " cannot be written to: " + e.getMessage(), e);
        }
    }

    /**
     * Opens the delivery's remote window at the transfer engine, for the area that the grant allows. What is offered
     * could be computed by the peer too, so it yields to prompts that were computed for theirs.
     */
    void allow(Delivery delivery, WindowArea area) {
        PageGrant grant = delivery.grant;
        DecoderSession session = grant.session();
        if (session.peer != null) {
            TrafficClass trafficClass = delivery.prefill.isOffer() ? TrafficClass.NORMAL : TrafficClass.URGENT;
            delivery.window = transfer.allow(session.peer, grant.imm(), area, trafficClass);
        }
    }

    /** Closes the remote window; writes already accepted still complete. */
    void disallow(Delivery delivery) {
        DecoderSession session = delivery.grant.session();
        if (session.peer != null && delivery.window != null) {
            transfer.disallow(session.peer, delivery.window);
        }
    }

    /**
     * Number of adjacent pieces, from this one on, that can be submitted as one write: those whose layers have the same
     * complete pages, as all have once the forward pass is over. At least 1.
     */
    int joinableCount(Delivery delivery, int routeIndex, int toPage) {
        List<PieceRoute> routes = delivery.routes;
        Prefill prefill = delivery.prefill;
        int count = 1;
        long lengthBytes = routes.get(routeIndex).piece().lengthBytes();
        int next = routes.get(routeIndex).continuation();
        while (next != TransferPlan.NONE && count < TransferRequest.WEIGHT_MAX) {
            PieceRoute route = routes.get(next);
            lengthBytes += route.piece().lengthBytes();
            if (lengthBytes > JOINED_BYTES_MAX
                    || delivery.nextPage[next] != delivery.nextPage[routeIndex]
                    || prefill.completePages(route) < toPage) {
                break;
            }
            count++;
            next = route.continuation();
        }
        return count;
    }

    /**
     * Submits pages {@code [nextPage[piece], toPage)} of {@code joinedCount} adjacent pieces, and advances
     * {@code nextPage} by what was accepted.
     *
     * @return the result of the last {@link TransferEngine#submit}
     */
    int submit(Delivery delivery, int routeIndex, int joinedCount, int toPage) {
        PieceRoute route = delivery.routes.get(routeIndex);
        int pagesMax = Math.max(1, PARTS_PER_WRITE_MAX / route.piece().source().countPerPage());
        int result = TransferEngine.ACCEPTED;
        while (result == TransferEngine.ACCEPTED && delivery.nextPage[routeIndex] < toPage) {
            int upTo = Math.min(toPage, delivery.nextPage[routeIndex] + pagesMax);
            result = submitOnce(delivery, routeIndex, joinedCount, upTo);
        }
        return result;
    }

    /** The kinds of context rows that transfers carry. */
    ContextKinds contextKinds() {
        return contextKinds;
    }

    /** Submits the context rows that have not been accepted yet; same result as {@link #submit}. */
    int submitContext(Delivery delivery) {
        int result = TransferEngine.ACCEPTED;
        while (result == TransferEngine.ACCEPTED && delivery.contextPending()) {
            result = submitContextRow(delivery);
        }
        return result;
    }

    private int submitContextRow(Delivery delivery) {
        PageGrant grant = delivery.grant;
        int position = delivery.contextRows[delivery.nextContextRow];
        ContextRow source = context.get(position);
        PeerContextRow target = grant.session().peerCache().context().get(position);
        int rowBytes = source.slots().kind().rowBytes();
        PagedWrites request = new PagedWrites(
                source.region(),
                new PageList(
                        new int[] {delivery.prefill.contextSlot},
                        0,
                        1,
                        source.slots().strideBytes(),
                        0),
                target.region(),
                new PageList(
                        new int[] {grant.contextSlot()}, 0, 1, target.slots().strideBytes(), 0),
                rowBytes,
                delivery.window,
                1);
        LayerWrite write = take(delivery);
        write.joinedCount = 0;
        write.stridedPieceCount = 0;
        write.pageCount = 0;
        write.bytes = rowBytes;
        int result = post(write, request);
        if (result == TransferEngine.ACCEPTED) {
            delivery.nextContextRow++;
        }
        return result;
    }

    /**
     * Why the engine's end of a prefill cannot be the end of its transfer; empty when it can.
     *
     * @param offered whether it ends what was offered, with which no context rows go
     */
    String unfitEnd(EngineCommand.PrefillEnded ended, boolean computed, boolean offered) {
        if (ended.outcome() != EngineCommand.PrefillOutcome.FINISHED || !computed) {
            return "the prefiller's engine ended the request (" + ended.outcome() + ") before its KV was complete";
        }
        int slot = ended.contextSlot();
        boolean fits = slot == ContextSlots.NO_SLOT
                ? offered || !contextKinds.anyAlways()
                : !context.isEmpty()
                        && context.stream().allMatch(row -> row.slots().has(slot));
        return fits ? "" : "the prefiller's engine ended the request with context slot " + ended.contextSlot();
    }

    /** Cookies of the writes that the transfer engine has accepted and not yet ended. */
    int[] cookiesInFlight() {
        return IntStream.range(0, writes.size())
                .filter(cookie -> writes.get(cookie).delivery != null && writes.get(cookie).sum == null)
                .toArray();
    }

    LayerWrite complete(int cookie) {
        return writes.get(cookie);
    }

    void recycle(LayerWrite write) {
        write.delivery = null;
        write.request = null;
        write.sum = null;
        free.add(write);
    }

    String refusalOf(int result, PageGrant grant) {
        return result == TransferEngine.REFUSED
                ? transfer.refusal()
                : "the data paths to " + grant.session().peerName() + " are gone";
    }

    private int submitOnce(Delivery delivery, int routeIndex, int joinedCount, int toPage) {
        PageGrant grant = delivery.grant;
        List<PieceRoute> routes = delivery.routes;
        PieceRoute route = routes.get(routeIndex);
        Piece piece = route.piece();
        int fromPage = delivery.nextPage[routeIndex];
        PromptPages pages = delivery.prefill.pages.get(route.groupIndex());
        SentParts parts = pages.isDivided()
                ? SentParts.ofShare(route, pages, shareOf(piece), grant, fromPage, toPage)
                : SentParts.all(route, pages, grant, fromPage, toPage);
        if (parts.count() == 0) { // other ranks have these pages
            delivery.onTaken(routeIndex, joinedCount, toPage);
            return TransferEngine.ACCEPTED;
        }
        int lengthBytes = 0;
        for (int i = 0, at = routeIndex;
                i < joinedCount;
                i++, at = routes.get(at).continuation()) {
            lengthBytes += routes.get(at).piece().lengthBytes();
        }
        PagedWrites request = new PagedWrites(
                route.source(),
                route.sourceParts(parts.source(), parts.sourceFrom(), parts.count()),
                route.target(),
                route.targetParts(parts.target(), parts.targetFrom(), parts.count()),
                lengthBytes,
                delivery.window,
                joinedCount);
        LayerWrite write = take(delivery);
        write.routeIndex = routeIndex;
        write.joinedCount = joinedCount;
        write.toPage = toPage;
        write.pageCount = parts.pageCount() * joinedCount;
        write.stridedPieceCount = piece.isStrided() ? parts.count() : 0;
        write.bytes = (long) lengthBytes * parts.count();
        int result = post(write, request);
        if (result == TransferEngine.ACCEPTED) {
            delivery.onTaken(routeIndex, joinedCount, toPage);
        }
        return result;
    }

    private int shareOf(Piece piece) {
        return KvGeometry.shareOf(
                geometry.ranks().get(piece.sourceRankIndex()), geometry.groups().get(piece.groupIndex()));
    }

    /** Which of the granted pages each rank has, for each group of divided pages; all pages of the prompt are known. */
    List<BitSet> sharesOf(Delivery delivery) {
        List<BitSet> shares = new ArrayList<>();
        for (RankGeometry rank : geometry.ranks()) {
            for (int group = 0; group < geometry.groups().size(); group++) {
                PromptPages pages = delivery.prefill.pages.get(group);
                if (pages.isDivided()) {
                    int share = KvGeometry.shareOf(rank, geometry.groups().get(group));
                    shares.add(pages.positionsOf(
                            share, pages.firstPageFor(delivery.grant), delivery.prefill.pageCount(group)));
                }
            }
        }
        return shares;
    }

    /** A pooled write of this delivery, to be filled in and posted; until then nothing may fail, or it stays in flight. */
    private LayerWrite take(Delivery delivery) {
        LayerWrite write = free.isEmpty() ? grow() : free.removeLast();
        write.delivery = delivery;
        return write;
    }

    /** Submits a write, which then is in flight, or returned to the pool if not accepted. */
    private int post(LayerWrite write, PagedWrites request) {
        Delivery delivery = write.delivery;
        int result = TransferEngine.REFUSED;
        try {
            result = transfer.submit(delivery.grant.session().peer, request, write.cookie);
        } finally { // nothing was accepted if it has thrown
            if (result != TransferEngine.ACCEPTED) {
                recycle(write);
            }
        }
        if (result == TransferEngine.ACCEPTED) {
            write.request = request;
            delivery.writesInFlight++;
            delivery.postedWeight +=
                    (long) request.weight() * request.sourcePages().count();
        }
        return result;
    }

    private LayerWrite grow() {
        LayerWrite write = new LayerWrite(writes.size());
        writes.add(write);
        return write;
    }
}
