package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.transfer.RemoteWindow;
import java.util.ArrayList;
import java.util.List;

/**
 * What one decoder's messenger gets of a prefill: its grant, and how far it has been served. State only, owned by the
 * messenger's thread; {@link Deliveries} drives it.
 *
 * <p>Pages leave in page order, so one number a route ({@link #nextPage}) says what has been submitted, and it does not
 * matter whether the layer or the grant came first.
 */
final class Delivery {
    final Prefill prefill;
    final PageGrant grant;
    /** The pieces of a page on their way to this decoder, in the order in which layers become readable. */
    final List<PieceRoute> routes;
    /** Where its writes go; null while nothing can be written to its decoder. */
    RemoteWindow window;
    /** Next page to submit, by index into {@link #routes}. */
    final int[] nextPage;

    /** What was readable when everything readable was submitted; looked at instead of all routes until it changes. */
    private final int[] exhausted = new int[Prefill.READABLE_INTS];

    private boolean anyExhausted;

    /** Which kinds of context rows go, in the order in which they leave. */
    final int[] contextRows;
    /** Next of them to submit. */
    int nextContextRow;

    /** When its grant and its prompt had met. */
    long begunNs;

    int writesInFlight;
    /** Of all writes that the transfer engine has taken: what the decoder will count. */
    long postedWeight;

    long pagesSent;
    long bytesSent;
    long lastLeftNs;

    /** A write failed: some of its bytes may have been sent, and this side cannot know whether they have landed. */
    boolean mayStillLand;

    /** No write will be submitted any more. */
    boolean stopped;

    String stopReason = "";
    /** How a stop is told to the decoder; unspecified = as the confirmation of its cancel. */
    Reason stopCode = Reason.REASON_UNSPECIFIED;
    /** What the pages of completed writes hold, not yet told. */
    final List<Checksums.Write> checksums = new ArrayList<>();
    /** All pages have left. */
    boolean sent;
    /** The decoder has been told how it ended, or needs not be. */
    boolean answered;

    Delivery(Prefill prefill, PageGrant grant, List<PieceRoute> routes) {
        this.prefill = prefill;
        this.grant = grant;
        this.routes = routes;
        this.contextRows = grant.context().positions();
        this.nextPage = routes.stream()
                .mapToInt(route -> prefill.pages.get(route.groupIndex()).firstPageFor(grant))
                .toArray();
    }

    boolean holds(Session session, long grantId) {
        return !answered && grant.is(session, grantId);
    }

    boolean isOf(Session session) {
        return grant.session() == session;
    }

    /** Whether its decoder waits for KV, or for the word that none will come. */
    boolean owed() {
        return !sent && !answered;
    }

    /** Whether context rows are left to submit. */
    boolean contextPending() {
        return nextContextRow < contextRows.length;
    }

    /** Whether nothing but writes is left to do. */
    boolean leavesWithoutEngine() {
        return grant.session().peerReady && prefill.computed() && (prefill.engineEnded || !contextPending());
    }

    /** Nothing reads the prefill's pages for this decoder any more, and nothing will. */
    boolean over() {
        return writesInFlight == 0 && (sent || answered);
    }

    /** Everything that is readable now has been submitted. */
    void noteExhausted() {
        anyExhausted = prefill.noteReadable(exhausted);
    }

    /** Nothing has become readable since everything that was had been submitted. */
    boolean isExhausted() {
        return anyExhausted && prefill.isReadableAs(exhausted);
    }

    boolean everythingSubmitted() {
        for (int route = 0; route < nextPage.length; route++) {
            if (nextPage[route] < prefill.pageCount(routes.get(route).groupIndex())) {
                return false;
            }
        }
        return true;
    }

    /** Pieces of a page have been submitted as one. */
    void onSubmitted(int routeIndex, int joinedCount, int toPage, long nowNs) {
        for (int i = 0, at = routeIndex;
                i < joinedCount;
                i++, at = routes.get(at).continuation()) {
            int toToken = prefill.tokensTo(routes.get(at).groupIndex(), toPage);
            prefill.chunks.onSubmitted(routes.get(at).layerOrdinal(), toToken, nowNs);
        }
    }

    /** A write has completed: counts it, and marks the chunks whose pages of its layers have all left. */
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
        Session session = grant.session();
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
