package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.ReadKey;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import io.kvmessenger.transfer.staging.Staging;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** A peer whose paths take what the test lets them take. */
final class OutboundPeerTest {
    private static final int PAGE_BYTES = 1 << 20;
    private static final int PAGES_PER_CYCLE = (int) (OutboundPeer.TURN_BYTES / PAGE_BYTES);
    private static final int REQUESTS_MAX = 8;
    private static final long SILENCE_LIMIT_NS = 1_000_000;
    private static final long REPAIR_LIMIT_NS = 100;

    private record Registered(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    /** Takes one page a post. */
    private static final class FakePath implements Endpoint {
        final List<Integer> pages = new ArrayList<>();
        final List<Long> postIds = new ArrayList<>();
        int room = Integer.MAX_VALUE;
        int givenUp;
        long acknowledgedBytes;
        boolean owesDelivery;

        @Override
        public int post(WriteBatch batch, long postId) {
            if (pages.size() >= room) {
                return 0;
            }
            batch.limit(1, Long.MAX_VALUE, Long.MAX_VALUE);
            pages.add(batch.firstUnit());
            postIds.add(postId);
            return 1;
        }

        @Override
        public void giveUp() {
            givenUp++;
        }

        @Override
        public long acknowledgedBytes() {
            return acknowledgedBytes;
        }

        @Override
        public boolean mayOweDelivery() {
            return owesDelivery;
        }
    }

    private final Arena arena = Arena.ofConfined();
    private final Registered memory = new Registered(
            new RegionDescriptor(1, PAGE_BYTES, RegionDescriptor.VERSION, false),
            Memory.host(arena.allocate(PAGE_BYTES)));
    private final CompletionRing completions = new CompletionRing(64, () -> {});
    private final List<Long> completed = new ArrayList<>();
    private final FakeDomain preferred = new FakeDomain("preferred", REPAIR_LIMIT_NS);
    private final FakeDomain other = new FakeDomain("other", 0);
    private final FakeLinks links = new FakeLinks();
    private PathEvents events;

    {
        preferred.silenceLimitNs = SILENCE_LIMIT_NS;
    }

    private final OutboundPeer peer = new OutboundPeer(
            1,
            "peer",
            new OutboundPeer.Target(
                    new EngineAddress(List.of(other.at("there"), preferred.at("there"))),
                    new byte[Admission.KEY_LENGTH_BYTES],
                    links,
                    List.of(preferred, other),
                    new Staging(DeviceAccess.NONE, StagingLimits.STANDARD)),
            REQUESTS_MAX,
            new Allowances(new RegionTable(new FfmLibC())),
            completions,
            new Figures(),
            () -> 0);

    @AfterEach
    void close() {
        arena.close();
    }

    private FakePath path() {
        FakePath path = new FakePath();
        events.onPathOpened(path);
        return path;
    }

    private void open() {
        preferred.ended = links.ended;
        peer.connect(0);
        peer.doWork(0);
        events = preferred.events;
        events.onReady();
    }

    private void submit(int pageCount, long cookie) {
        PageList pages = new PageList(new int[pageCount], 0, pageCount, PAGE_BYTES, 0);
        peer.offer(
                new PagedWrites(memory, pages, memory.descriptor(), pages, PAGE_BYTES, () -> Imm.of(1, 0), 1),
                cookie,
                WriteLedger.OF_USER);
    }

    private List<Long> completed() {
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    if (kind == CompletionRing.WRITE_COMPLETED) {
                        completed.add(cookie);
                    }
                },
                64);
        return completed;
    }

    /** A hostile peer could take memory and the messenger's thread with them. */
    @Test
    void shouldTakeAsManyQuestionsAsAPeerMayHave() {
        open();
        int before = completions.size();
        MemorySegment question = MemorySegment.ofArray(new byte[ReadAsk.LENGTH_MAX_BYTES]);
        for (int i = 0; i < InboundAdmission.READS_ASKED_MAX; i++) {
            assertThat(peer.onAsked(question)).isTrue();
        }
        assertThat(peer.onAsked(question)).isFalse();
        assertThat(completions.size() - before).as("one event tells of all").isEqualTo(1);
        peer.hearAsked();
        peer.asked().release();
        assertThat(peer.onAsked(MemorySegment.ofArray(new byte[ReadAsk.LENGTH_MAX_BYTES + 1])))
                .isFalse();
        assertThat(peer.onAsked(question)).isTrue();
        assertThat(completions.size() - before).isEqualTo(2);
    }

    /** What it asks for is none of what a reader may say, or its answers pile up: the peer is lost, and no other. */
    @Test
    void shouldLoseAPeerThatAsksForNonsenseOrTakesNoAnswers() {
        open();
        List<String> lost = new ArrayList<>();
        ReadDesk desk = new ReadDesk(new ReadDesk.Engine() {
            @Override
            public boolean hasRoom() {
                return true;
            }

            @Override
            public void wake(OutboundPeer reader) {}

            @Override
            public void lose(OutboundPeer reader, String detail) {
                lost.add(detail);
            }
        });
        assertThat(peer.onAsked(MemorySegment.ofArray(new byte[200]))).isTrue();
        assertThat(desk.onAsked(peer)).isZero();
        assertThat(lost).containsExactly("the peer asks for a read that is none");
        PageList pages = new PageList(new int[1], 0, 1, PAGE_BYTES, 0);
        ReadAsk ask = new ReadAsk(Imm.of(1, 0), 0, true, new ReadKey(1, 1), 1, pages, 1, pages, PAGE_BYTES);
        MemorySegment question = ask.encode(MemorySegment.ofArray(new byte[ReadAsk.LENGTH_MAX_BYTES]));
        for (int i = 0; i <= InboundAdmission.READS_ASKED_MAX; i++) {
            assertThat(lost).hasSize(1);
            assertThat(peer.onAsked(question)).isTrue();
            assertThat(desk.onAsked(peer)).isZero();
        }
        assertThat(lost).hasSize(2);
        assertThat(lost.getLast()).contains("more reads at once");
    }

    @Test
    void shouldLetOtherPeersHaveTheWorkerWhenItsShareIsUsedUp() {
        open();
        FakePath path = path();
        submit(2 * PAGES_PER_CYCLE + 1, 1);
        assertThat(List.of(peer.doWork(0), peer.doWork(0), peer.doWork(0), peer.doWork(0)))
                .containsExactly(PAGES_PER_CYCLE, PAGES_PER_CYCLE, 1, 0);
        path.postIds.forEach(events::onSent);
        assertThat(completed()).containsExactly(1L);
    }

    @Test
    void shouldPostTheNextSliceToThePathThatHasRoom() {
        open();
        FakePath full = path();
        full.room = 1;
        FakePath free = path();
        submit(2 * PAGES_PER_CYCLE, 1);
        while (peer.doWork(0) > 0) {}
        assertThat(full.pages).hasSize(1);
        assertThat(free.pages).hasSize(2 * PAGES_PER_CYCLE - 1);
    }

    /** A write that is the oldest of its path in two looks was silent for the limit between them. */
    @Test
    void shouldGiveUpAPathOfWhoseOldestWriteNothingIsHeard() {
        open();
        FakePath silent = path();
        silent.room = 2;
        FakePath heard = path();
        heard.room = 2;
        FakePath idle = path();
        idle.room = 0;
        submit(4, 1);
        peer.doWork(0);
        assertThat(silent.pages).hasSize(2);
        assertThat(heard.pages).hasSize(2);
        events.onSent(heard.postIds.getFirst());
        peer.doWork(SILENCE_LIMIT_NS - 1);
        assertThat(silent.givenUp).isZero();
        peer.doWork(SILENCE_LIMIT_NS);
        assertThat(List.of(silent.givenUp, heard.givenUp, idle.givenUp)).containsExactly(1, 0, 0);
        peer.doWork(2 * SILENCE_LIMIT_NS);
        assertThat(heard.givenUp).isEqualTo(1);
    }

    /** A page may take the network many limits: its post is the oldest all the time. */
    @Test
    void shouldNotGiveUpAPathOnWhichALongWriteMoves() {
        open();
        FakePath slow = path();
        slow.room = 1;
        submit(1, 1);
        for (int limits = 0; limits < 100; limits++) {
            slow.acknowledgedBytes++;
            peer.doWork(limits * SILENCE_LIMIT_NS);
            assertThat(slow.givenUp).isZero();
        }
        peer.doWork(100 * SILENCE_LIMIT_NS);
        assertThat(slow.givenUp).isEqualTo(1);
    }

    /** Whatever the clock began with. */
    @Test
    void shouldGiveUpNoPathBeforeItsFirstLimit() {
        open();
        FakePath path = path();
        submit(1, 1);
        peer.doWork(Long.MAX_VALUE - SILENCE_LIMIT_NS);
        peer.doWork(Long.MAX_VALUE - 1);
        assertThat(path.givenUp).isZero();
        peer.doWork(Long.MAX_VALUE + SILENCE_LIMIT_NS);
        assertThat(path.givenUp).isEqualTo(1);
    }

    @Test
    void shouldPostWhatALostPathHadToTheOthersAndHearNoMoreOfIt() {
        open();
        FakePath lost = path();
        submit(PAGES_PER_CYCLE, 1);
        peer.doWork(0);
        events.onSent(lost.postIds.getFirst());
        FakePath other = path();
        events.onPathLost(lost);
        peer.doWork(0);
        assertThat(other.pages).isEqualTo(lost.pages.subList(1, PAGES_PER_CYCLE));
        lost.postIds.forEach(events::onSent);
        assertThat(completed()).as("only the other path's word counts").isEmpty();
        other.postIds.forEach(events::onSent);
        assertThat(completed()).containsExactly(1L);
    }

    @Test
    void shouldKeepWhatWaitsWhileThereIsNoPath() {
        open();
        submit(1, 1);
        assertThat(peer.doWork(0)).isZero();
        FakePath path = path();
        assertThat(peer.doWork(0)).isEqualTo(1);
        path.postIds.forEach(events::onSent);
        assertThat(completed()).containsExactly(1L);
    }

    /** The preferred domain has had its first path. */
    private FakePath openPreferred() {
        open();
        return path();
    }

    private FakePath pathOf(FakeDomain domain) {
        FakePath path = new FakePath();
        domain.events.onPathOpened(path);
        return path;
    }

    private List<String> losses() {
        List<String> losses = new ArrayList<>();
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    if (kind == CompletionRing.PEER_LOST) {
                        losses.add(((OutboundPeer.Loss) subject).fault() + " " + detail);
                    }
                },
                64);
        return losses;
    }

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
    void shouldLoseThePeerInTheTimeSaidWhenNoRouteIsLeft() {
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

    private List<String> failures() {
        List<String> failures = new ArrayList<>();
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    if (kind == CompletionRing.WRITE_FAILED) {
                        failures.add(cookie + " " + subject + " " + detail);
                    }
                },
                64);
        return failures;
    }

    /** The submitter may not have seen the loss yet; what it submits fails by it, whichever comes next. */
    @Test
    void shouldFailByItsLossWhatIsSubmittedTooLate() {
        openPreferred();
        submit(1, 1);
        peer.onLost(TransferFault.PEER_CLOSED, "the card is gone");
        submit(1, 2);
        peer.doWork(0);
        submit(1, 3);
        peer.disconnect(TransferFault.DISCONNECTED, "disconnected by this engine");
        submit(1, 4);
        peer.doWork(0);
        assertThat(failures())
                .containsExactly(
                        "1 PEER_CLOSED the card is gone",
                        "2 PEER_CLOSED the card is gone",
                        "3 PEER_CLOSED the card is gone",
                        "4 PEER_CLOSED the card is gone");
    }
}
