package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.session.ProtocolState;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.transfer.RemoteWindow;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;

/**
 * What one decoder's messenger gets of a prefill: its grant, and how far it has been served. State only, owned by the
 * messenger's thread; {@link Deliveries} drives it.
 *
 * <p>Pages are submitted in page order, so one number per route ({@link #nextPage}) records what has been submitted,
 * whether the layer or the grant came first.
 */
final class Delivery {
    /** The states of a delivery; the table of docs/protocol.md. */
    enum State implements ProtocolState<State> {
        /** Pages leave as they become readable. */
        GRANTED,
        /** Nothing more is submitted; the answer waits for the last write to complete. */
        STOPPED,
        /** The decoder has its answer, or the end of its session in place of one. */
        ANSWERED,
        /** All pages have left. */
        SENT;

        @Override
        public Set<State> next() {
            return switch (this) {
                case GRANTED -> EnumSet.of(STOPPED, SENT);
                case STOPPED -> EnumSet.of(ANSWERED);
                case ANSWERED, SENT -> EnumSet.noneOf(State.class);
            };
        }
    }

    final Prefill prefill;
    final PageGrant grant;
    /** The routes of a page's pieces to this decoder, in the order in which layers become readable. */
    final List<PieceRoute> routes;
    /** The decoder's window at the transfer engine; null while nothing can be written to it. */
    RemoteWindow window;
    /** Next page to submit, by index into {@link #routes}. */
    final int[] nextPage;

    /** The readable state at which everything was submitted; compared instead of walking all routes. */
    private final int[] exhausted = new int[Prefill.READABLE_INTS];

    private boolean anyExhausted;

    /** Indices of the kinds of context rows to send, in order of submission. */
    final int[] contextRows;
    /** Next of {@link #contextRows} to submit. */
    int nextContextRow;

    /** When its grant and its prompt were matched. */
    long begunNs;

    /** Which granted pages are on these ranks, as its decoder was sent it; null before, and where all are. */
    private List<BitSet> sharesSent;

    int writesInFlight;
    /** Weight of all writes that the transfer engine has accepted, which the decoder will count. */
    long postedWeight;

    long pagesSent;
    long bytesSent;
    long lastLeftNs;

    /** A write failed: part of its bytes may have been sent, and whether they have landed is unknown on this side. */
    boolean mayStillLand;

    /** Why nothing more is submitted; null while more may be. */
    private Stop stop;

    private State state = State.GRANTED;
    /** Checksums of completed writes that have not been sent yet. */
    final List<Checksums.Write> checksums = new ArrayList<>();

    Delivery(Prefill prefill, PageGrant grant, List<PieceRoute> routes) {
        this.prefill = prefill;
        this.grant = grant;
        this.routes = routes;
        this.contextRows = grant.context().positions();
        this.nextPage = routes.stream()
                .mapToInt(route -> prefill.pages.get(route.groupIndex()).firstPageFor(grant))
                .toArray();
    }

    State state() {
        return state;
    }

    /** @throws IllegalStateException if that state may not follow */
    void become(State next) {
        state = ProtocolState.change(state, next);
    }

    /** Whether more of it may be submitted. */
    boolean open() {
        return state == State.GRANTED;
    }

    /** Whether it ends without everything sent. */
    boolean stopped() {
        return state == State.STOPPED || state == State.ANSWERED;
    }

    boolean sent() {
        return state == State.SENT;
    }

    void stop(Stop why) {
        become(State.STOPPED);
        stop = why;
    }

    /** Why it has been stopped; only for one that has. */
    Stop stop() {
        return stop;
    }

    boolean holds(DecoderSession session, long grantId) {
        return state != State.ANSWERED && grant.is(session, grantId);
    }

    boolean isOf(DecoderSession session) {
        return grant.session() == session;
    }

    /** Whether its decoder still waits for KV, or for the notice that none will come. */
    boolean owed() {
        return !over();
    }

    /** Whether any context row has not been submitted. */
    boolean contextPending() {
        return nextContextRow < contextRows.length;
    }

    /** Whether context rows are in flight, which implies that all KV has left. */
    boolean contextUnderWay() {
        return nextContextRow > 0 && writesInFlight > 0;
    }

    /** Whether the delivery can finish by writes alone, without the engine. */
    boolean leavesWithoutEngine() {
        return grant.session().writable() && prefill.computed() && (prefill.ended() || !contextPending());
    }

    /** Whether all of it is posted: its writes alone decide whether it has been sent, whatever the session does. */
    boolean awaitsOnlyCompletions() {
        return writesInFlight > 0 && open() && kvSubmitted() && !contextPending() && !mayStillLand;
    }

    /** Nothing reads the prefill's pages for this decoder, now or later. */
    boolean over() {
        return state == State.SENT || state == State.ANSWERED;
    }

    /** Notes that everything readable now has been submitted. */
    void noteExhausted() {
        anyExhausted = prefill.noteReadable(exhausted);
    }

    /** Whether nothing has become readable since everything readable had been submitted. */
    boolean isExhausted() {
        return anyExhausted && prefill.isReadableAs(exhausted);
    }

    /** Whether all pages of the prompt have been submitted; its context rows may not have. */
    boolean kvSubmitted() {
        return prefill.computed() && everythingSubmitted();
    }

    boolean everythingSubmitted() {
        for (int route = 0; route < nextPage.length; route++) {
            if (nextPage[route] < prefill.pageCount(routes.get(route).groupIndex())) {
                return false;
            }
        }
        return true;
    }

    /** Pages before {@code toPage} of joined pieces have been accepted, or are on other ranks. */
    void onTaken(int routeIndex, int joinedCount, int toPage) {
        for (int i = 0, at = routeIndex;
                i < joinedCount;
                i++, at = routes.get(at).continuation()) {
            nextPage[at] = toPage;
        }
    }

    /** Whether its decoder has yet to be sent which pages are on these ranks, and all are known. */
    boolean owesShares() {
        return sharesSent == null
                && prefill.promptTokens > 0
                && prefill.pages.stream().anyMatch(PromptPages::isDivided)
                && prefill.pages.stream().allMatch(group -> !group.isDivided() || group.complete(prefill.promptTokens));
    }

    void onSharesSent(List<BitSet> shares) {
        sharesSent = shares;
    }

    /** Records the submission of joined pieces of pages. */
    void onSubmitted(int routeIndex, int joinedCount, int toPage, long nowNs) {
        for (int i = 0, at = routeIndex;
                i < joinedCount;
                i++, at = routes.get(at).continuation()) {
            int toToken = prefill.tokensTo(routes.get(at).groupIndex(), toPage);
            prefill.chunks.onSubmitted(routes.get(at).layerOrdinal(), toToken, nowNs);
        }
    }

    /** Accounts for a completed write, and marks the chunks whose pages of its layers have all left. */
    void onLeft(LayerWrite write, long nowNs) {
        writesInFlight--;
        pagesSent += write.pageCount;
        bytesSent += write.bytes;
        lastLeftNs = nowNs;
        for (int i = 0, at = write.routeIndex;
                i < write.joinedCount;
                i++, at = routes.get(at).continuation()) {
            int toToken = prefill.endTokenLeft(routes.get(at).groupIndex(), write.toPage);
            prefill.chunks.onLeft(routes.get(at).layerOrdinal(), toToken, nowNs);
        }
    }

    PrefillTimeline timeline() {
        DecoderSession session = grant.session();
        return new PrefillTimeline(
                prefill.request,
                prefill.transfer().id(),
                prefill.promptTokens,
                pagesSent,
                bytesSent,
                grant.receivedNs(),
                lastLeftNs,
                session.peer == null ? "" : session.peer.transport(),
                session.peerName(),
                prefill.chunks.sums(),
                prefill.chunks.kept());
    }
}
