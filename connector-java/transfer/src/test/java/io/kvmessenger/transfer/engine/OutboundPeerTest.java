package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ReadKey;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** A peer whose paths take what the test lets them take. */
final class OutboundPeerTest extends OutboundPeerBed {
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
