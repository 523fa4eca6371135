package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferFault;
import org.junit.jupiter.api.Test;

/** Which domain a peer is written to by when paths come and go. */
final class OutboundRoutesTest extends OutboundPeerBed {
    @Test
    void shouldTakeTheNextRouteWhenThePreferredHasNoPathForTooLong() {
        FakePath first = openPreferred();
        submit(1, 1);
        peer.doWork(0);
        preferred.events.onPathLost(first);
        peer.doWork(0);
        peer.doWork(REPAIR_LIMIT_NS);
        assertThat(other.attached).as("it may still come back").isZero();
        peer.doWork(REPAIR_LIMIT_NS + 1);
        assertThat(other.attached).isEqualTo(1);
        other.events.onReady();
        FakePath next = pathOf(other);
        peer.doWork(REPAIR_LIMIT_NS + 2);
        assertThat(next.pages).isEqualTo(first.pages);
        assertThat(peer.transport()).isEqualTo("other");
        first.postIds.forEach(preferred.events::onSent);
        assertThat(completed()).isEmpty();
        next.postIds.forEach(other.events::onSent);
        assertThat(completed()).containsExactly(1L);
    }

    /** The preferred domain's only path is lost, and does not come back in time. */
    private FakePath fallToOther(FakePath lost) {
        preferred.events.onPathLost(lost);
        peer.doWork(0);
        peer.doWork(REPAIR_LIMIT_NS + 1);
        other.events.onReady();
        return pathOf(other);
    }

    @Test
    void shouldComeBackToThePreferredRouteWhenItHasAPathAgain() {
        FakePath first = openPreferred();
        FakePath second = fallToOther(first);
        FakePath again = pathOf(preferred);
        submit(1, 1);
        peer.doWork(REPAIR_LIMIT_NS + 2);
        assertThat(again.pages).hasSize(1);
        assertThat(second.pages).isEmpty();
        assertThat(peer.transport()).isEqualTo("preferred");
    }

    @Test
    void shouldTakeTheNextRouteAtOnceWhenOneFailsOfWhichNothingIsOnItsWay() {
        FakePath first = openPreferred();
        submit(1, 1);
        peer.doWork(0);
        first.postIds.forEach(preferred.events::onSent);
        preferred.events.onFailed(TransferFault.UNREACHABLE, "the mapping is gone");
        assertThat(links.ended).containsExactly("paths of preferred");
        assertThat(other.attached).isEqualTo(1);
        other.events.onReady();
        FakePath next = pathOf(other);
        submit(1, 2);
        peer.doWork(0);
        assertThat(next.pages).hasSize(1);
        assertThat(losses()).isEmpty();
    }

    /** To send it again could count it twice. */
    @Test
    void shouldLoseThePeerWhenWhatAFailedRouteHadMayHaveArrived() {
        openPreferred();
        submit(1, 1);
        peer.doWork(0);
        preferred.events.onFailed(TransferFault.PEER_CLOSED, "the card is gone");
        assertThat(other.attached).isZero();
        assertThat(losses()).containsExactly("PEER_CLOSED the card is gone");
    }

    /** Its window would wait for ever. */
    @Test
    void shouldLoseThePeerWhenWhatAFailedRouteHasSentMayNotHaveArrived() {
        FakePath first = openPreferred();
        first.owesDelivery = true;
        submit(1, 1);
        peer.doWork(0);
        first.postIds.forEach(preferred.events::onSent);
        preferred.events.onFailed(TransferFault.PEER_CLOSED, "the card is gone");
        assertThat(other.attached).isZero();
        assertThat(losses()).containsExactly("PEER_CLOSED the card is gone");
    }

    @Test
    void shouldTryALostRouteAgainAfterARest() {
        openPreferred();
        preferred.events.onFailed(TransferFault.UNREACHABLE, "the mapping is gone");
        other.events.onReady();
        FakePath second = pathOf(other);
        peer.doWork(PeerDomain.REST_MIN_NS - 1);
        assertThat(preferred.attached).isEqualTo(1);
        peer.doWork(PeerDomain.REST_MIN_NS);
        assertThat(preferred.attached).isEqualTo(2);
        preferred.events.onReady();
        FakePath again = pathOf(preferred);
        submit(1, 1);
        peer.doWork(PeerDomain.REST_MIN_NS);
        assertThat(again.pages).hasSize(1);
        assertThat(second.pages).isEmpty();
    }

    /** It served until it was lost, and the preferred one was back: it is as good as before, rested or not. */
    @Test
    void shouldTakeTheNextRouteASecondTime() {
        FakePath first = openPreferred();
        fallToOther(first);
        FakePath again = pathOf(preferred);
        other.events.onFailed(TransferFault.UNREACHABLE, "the mapping is gone");
        assertThat(losses()).isEmpty();
        preferred.events.onPathLost(again);
        peer.doWork(2 * REPAIR_LIMIT_NS);
        peer.doWork(3 * REPAIR_LIMIT_NS + 1);
        assertThat(losses()).as("domains lost").isEmpty();
        assertThat(other.attached).isEqualTo(2);
        other.events.onReady();
        FakePath second = pathOf(other);
        submit(1, 1);
        peer.doWork(3 * REPAIR_LIMIT_NS + 2);
        assertThat(second.pages).hasSize(1);
    }

    /** Two domains that are lost one after the other, without serving in between, are not tried for ever. */
    @Test
    void shouldLoseThePeerWhenTheRouteThatServedBeforeIsNotThereEither() {
        openPreferred();
        preferred.events.onFailed(TransferFault.UNREACHABLE, "the mapping is gone");
        other.events.onReady();
        pathOf(other);
        other.events.onFailed(TransferFault.UNREACHABLE, "the socket is gone");
        assertThat(preferred.attached).isEqualTo(2);
        preferred.events.onFailed(TransferFault.UNREACHABLE, "still gone");
        assertThat(other.attached).isEqualTo(1);
        assertThat(losses()).containsExactly("UNREACHABLE still gone");
    }

    @Test
    void shouldLoseThePeerInTheTimeSetWhenNoRouteIsLeft() {
        FakePath first = openPreferred();
        preferred.events.onPathLost(first);
        peer.doWork(0);
        peer.doWork(REPAIR_LIMIT_NS + 1);
        other.events.onFailed(TransferFault.UNREACHABLE, "no such memory");
        assertThat(losses()).containsExactly("UNREACHABLE no such memory");
    }

    /** To the peer the end of the link is the word that nothing is written any more. */
    @Test
    void shouldClosePathsBeforeTheLinkIs() {
        openPreferred();
        links.events.onLost(TransferFault.PEER_CLOSED, "it hung up");
        assertThat(links.ended).containsExactly("preferred", "link");
        assertThat(losses()).containsExactly("PEER_CLOSED it hung up");
    }
}
