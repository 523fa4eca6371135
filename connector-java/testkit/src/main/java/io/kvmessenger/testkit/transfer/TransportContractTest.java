package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Requirements on every transport. A transport's test inherits all of it and names the transport. */
@Timeout(900)
public abstract class TransportContractTest extends WriterAndTarget {
    private static final int ROUNDS = 200;

    /** A lost wake-up shows as a test that does not end. */
    @Test
    void shouldEndAWaitWhenAnotherThreadSaysSo() throws InterruptedException {
        for (int round = 0; round < ROUNDS; round++) {
            Thread waker = Thread.ofPlatform().start(writer.engine()::wake);
            writer.engine().await(Long.MAX_VALUE / 2);
            waker.join();
        }
    }

    @Test
    void shouldBearAWakeUpWhileItIsClosed() throws InterruptedException {
        AtomicBoolean closed = new AtomicBoolean();
        AtomicReference<Throwable> fault = new AtomicReference<>();
        Thread waker = Thread.ofPlatform()
                .uncaughtExceptionHandler((thread, thrown) -> fault.set(thrown))
                .start(() -> {
                    while (!closed.get()) {
                        writer.engine().wake();
                    }
                    writer.engine().wake();
                });
        writer.engine().close();
        closed.set(true);
        waker.join();
        assertThat(fault).hasValue(null);
    }

    @Test
    void shouldUseTheTransportAskedFor() {
        assertThat(peer.transport()).isEqualTo(transport());
    }

    @Test
    void shouldWriteOneRangeAndNothingElse() {
        fillSource(new Random(1));
        long length = 300_001;
        ImmWindow window = grant(WindowRanges.ofEqual(new long[] {77}, length), 5, 9);
        writer.submit(peer, single(remote(window), 5, 13, 77, length), 1);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(9L));
        assertThat(target.memory().asSlice(77, length).mismatch(writer.memory().asSlice(13, length)))
                .isEqualTo(-1);
        assertThat(isGuard(target.memory().asSlice(0, 77))).isTrue();
        assertThat(isGuard(target.memory().asSlice(77 + length))).isTrue();
        writer.await("the completion", () -> writer.completed.contains(1L));
        assertThat(window.arrivedWeight()).isEqualTo(5);
    }

    @Test
    void shouldWritePagesInAnyOrder() {
        Random random = new Random(2);
        fillSource(random);
        int[] from = shuffled(300, random);
        int[] to = shuffled(300, random);
        ImmWindow window = grant(pages(to), 300, 4);
        writer.submit(peer, paged(window, from, to), 1);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(4L));
        for (int i = 0; i < from.length; i++) {
            assertThat(pageArrived(from[i], to[i])).as("page %d", i).isTrue();
        }
    }

    @Test
    void shouldMovePagesThatFollowEachOtherOnBothSidesAsOneAndCountEach() {
        fillSource(new Random(11));
        int[] from = {3, 4, 5, 9, 10, 20, 21};
        int[] to = {6, 7, 8, 1, 2, 14, 12};
        TransferCounters before = writer.engine().counters();
        ImmWindow window = grant(pages(to), to.length, 11);
        writer.submit(peer, paged(window, from, to), 11);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(11L));
        DrivenEngine.awaitBoth(
                "the completion",
                writer,
                target,
                () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
        for (int i = 0; i < from.length; i++) {
            assertThat(pageArrived(from[i], to[i])).as("page %d", i).isTrue();
        }
        TransferCounters after = writer.engine().counters();
        assertThat(after.of(TransferCounter.PAGES_SENT) - before.of(TransferCounter.PAGES_SENT))
                .isEqualTo(7);
        assertThat(after.of(TransferCounter.WRITES_SENT) - before.of(TransferCounter.WRITES_SENT))
                .isEqualTo(4);
        assertThat(after.of(TransferCounter.WRITES_SAVED) - before.of(TransferCounter.WRITES_SAVED))
                .isEqualTo(3);
        assertThat(after.of(peer.transport(), TransferCounter.WRITES_SENT))
                .as("all writes are of the transport that the peer is written to by")
                .isEqualTo(after.of(TransferCounter.WRITES_SENT));
        assertThat(peer.queuedBytes()).as("all has ended").isZero();
    }

    /** A page of one side holds several of the other's. */
    @Test
    void shouldFillPartsOfPages() {
        fillSource(new Random(12));
        int[] from = {7, 2, 30, 31};
        int partBytes = PAGE_BYTES / 2;
        ImmWindow window = grant(pages(5, 9), 4, 12);
        writer.submit(
                peer,
                new PagedWrites(
                        writer.region(),
                        new PageList(from, 0, 4, partBytes, 0),
                        target.region().descriptor(),
                        new PageList(new int[] {5, 9}, 0, 4, PAGE_BYTES, 0, 2, partBytes),
                        partBytes,
                        remote(window),
                        1),
                12);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(12L));
        for (int i = 0; i < from.length; i++) {
            long at = (i < 2 ? 5L : 9L) * PAGE_BYTES + (i % 2) * (long) partBytes;
            assertThat(writer.memory()
                            .asSlice((long) from[i] * partBytes, partBytes)
                            .mismatch(target.memory().asSlice(at, partBytes)))
                    .as("part %d", i)
                    .isEqualTo(-1);
        }
    }

    @Test
    void shouldShowPayloadBeforeItsImmediate() {
        Random random = new Random(3);
        for (int round = 0; round < ROUNDS; round++) {
            fillSource(random);
            int count = 1 + random.nextInt(PAGE_COUNT);
            int[] from = shuffled(count, random);
            int[] to = shuffled(count, random);
            ImmWindow window = grant(pages(to), count, round);
            boolean[] right = {true};
            target.onFilled(() -> {
                for (int i = 0; i < count; i++) {
                    right[0] &= pageArrived(from[i], to[i]);
                }
            });
            submitInPieces(window, from, to, random, round * 1000L);
            long cookie = round;
            DrivenEngine.awaitBoth("round " + round, target, writer, () -> target.filled.contains(cookie));
            assertThat(right[0]).as("every byte of round %d", round).isTrue();
            DrivenEngine.awaitBoth(
                    "completions",
                    writer,
                    target,
                    () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
            writer.engine().disallow(peer, remote(window));
            window.close(true);
        }
        assertThat(writer.endings.values()).containsOnly(1);
        assertThat(target.engine().counters().of(TransferCounter.WINDOWS_OPEN)).isZero();
    }

    private void submitInPieces(ImmWindow window, int[] from, int[] to, Random random, long firstCookie) {
        long cookie = firstCookie;
        for (int done = 0; done < from.length; ) {
            int piece = Math.min(from.length - done, 1 + random.nextInt(100));
            writer.submit(
                    peer,
                    paged(
                            window,
                            Arrays.copyOfRange(from, done, done + piece),
                            Arrays.copyOfRange(to, done, done + piece)),
                    cookie++);
            done += piece;
        }
    }

    @Test
    void shouldCountImmediatesThatArriveBeforeAnybodyPolls() {
        ImmWindow window = grant(everything(), 3, 8);
        for (int i = 0; i < 3; i++) {
            writer.submit(peer, immediate(window, 1), i);
        }
        writer.await("all sent", () -> writer.completed.size() == 3);
        writer.await("all arrived, without a poll at the target", () -> window.arrivedWeight() == 3);
        assertThat(target.filled).isEmpty();
        target.await("the window", () -> target.filled.contains(8L));
    }

    @Test
    void shouldReportMoreThanExpected() {
        ImmWindow window = grant(everything(), 3, 8);
        writer.submit(peer, immediate(window, 4), 0);
        DrivenEngine.awaitBoth("the overshoot", target, writer, () -> target.overshot.containsKey(8L));
        assertThat(target.overshot.get(8L)).isEqualTo(new DrivenEngine.Overshoot(4, 3));
        assertThat(target.filled).isEmpty();
    }

    /** Its target could not count it, so nothing would prove its end. */
    @Test
    void shouldRefuseAWriteWithoutWeight() {
        ImmWindow window = grant(pages(7), 1, 8);
        for (int weight : new int[] {0, -1, Integer.MIN_VALUE, TransferRequest.WEIGHT_MAX + 1}) {
            assertRefused(paged(window, weight, new int[] {0}, new int[] {7}), "weight " + weight);
            assertRefused(immediate(window, weight), "weight " + weight);
        }
        assertThat(writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT))
                .isZero();
        assertThat(isGuard(target.memory())).isTrue();
    }

    @Test
    void shouldCompleteARequestWithoutPages() {
        ImmWindow window = grant(everything(), 1, 8);
        writer.submit(peer, paged(window, new int[0], new int[0]), 5);
        writer.await("the completion", () -> writer.completed.contains(5L));
        assertThat(window.arrivedWeight()).isZero();
    }

    @Test
    void shouldNeverCountForAnEarlierUseOfASlot() {
        ImmWindow old = grant(everything(), 1, 1);
        writer.submit(peer, immediate(old, 1), 0);
        target.await("the first use", () -> target.filled.contains(1L));
        old.close(true);
        ImmWindow reused = reopen(Imm.slot(old.imm()));
        assertThat(Imm.generation(reused.imm())).isEqualTo(Imm.generation(old.imm()) + 1);
        // The writer was never told that the old window has ended.
        writer.submit(peer, immediate(old, 1), 1);
        target.await("the stray", () -> target.engine().counters().of(TransferCounter.STRAYS) == 1);
        assertThat(reused.arrivedWeight()).isZero();
        assertThat(target.closedAdmissions).as("a late write is no fault").isEmpty();
    }

    /** A window that is granted again after a preemption has the cookie of the first one. */
    @Test
    void shouldNotReportAClosedWindowAsFilled() {
        ImmWindow first = grant(everything(), 1, 9);
        ImmWindow overshot = grant(everything(), 1, 9);
        writer.submit(peer, immediate(first, 1), 0);
        writer.submit(peer, immediate(overshot, 2), 1);
        writer.await(
                "both to arrive, without a poll at the target",
                () -> first.arrivedWeight() == 1 && overshot.arrivedWeight() == 2);
        first.close(true);
        overshot.close(true);
        ImmWindow again = grant(everything(), 1, 9);
        ImmWindow marker = grant(everything(), 1, 10);
        writer.submit(peer, immediate(marker, 1), 2);
        DrivenEngine.awaitBoth("the marker", target, writer, () -> target.filled.contains(10L));
        assertThat(target.filled).containsExactly(10L);
        assertThat(target.overshot).isEmpty();
        writer.submit(peer, immediate(again, 1), 3);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(9L));
        assertThat(target.filled).containsExactly(10L, 9L);
    }

    /** Opens and closes windows until the slot is reused. */
    private ImmWindow reopen(int slot) {
        for (int i = 0; i < Imm.SLOT_COUNT_MAX; i++) {
            ImmWindow window = target.openWindow(admission, everything(), 1, 100 + i);
            if (Imm.slot(window.imm()) == slot) {
                return window;
            }
            window.close(true);
        }
        throw new AssertionError("slot " + slot + " was not used again");
    }

    @Test
    void shouldKeepAnUndrainedSlotUntilItsAdmissionEnds() {
        ImmWindow window = grant(everything(), 1, 1);
        window.close(false);
        assertThat(target.engine().counters().of(TransferCounter.WINDOWS_OPEN)).isEqualTo(1);
        target.engine().revoke(admission);
        DrivenEngine.awaitBoth(
                "the end of the admission", target, writer, () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(target.engine().counters().of(TransferCounter.WINDOWS_OPEN)).isZero();
    }

    @Test
    void shouldEndAnAdmissionThatNobodyUsed() {
        Admission unused = target.engine().admit("absent");
        ImmWindow window = target.openWindow(unused, everything(), 1, 1);
        assertThat(window.imm()).isNotEqualTo(Imm.NONE);
        target.engine().revoke(unused);
        target.await("the end", () -> target.closedAdmissions.containsKey(unused.id()));
    }

    @Test
    void shouldRefuseWhatLeavesItsWindowBeforeItIsSent() {
        ImmWindow window = grant(pages(10, 11), 2, 1);
        RemoteWindow remote = remote(window);
        assertRefused(paged(window, new int[] {0, 1}, new int[] {10, 12}), "outside the window");
        assertRefused(single(remote, 0, 10L * PAGE_BYTES - 1, 2), "outside the window");
        assertRefused(single(remote, 0, 11L * PAGE_BYTES, PAGE_BYTES + 1), "outside the window");
        assertRefused(single(remote, 0, -1, 1), "outside the window");
        assertRefused(single(remote, 0, Long.MAX_VALUE, 2), "outside the window");
        assertRefused(single(remote, MEMORY_BYTES - 1, 10L * PAGE_BYTES, 2), "outside its region");
        assertRefused(single(window::imm, 0, 10L * PAGE_BYTES, 1), "no window");
        writer.engine().disallow(peer, remote(window));
        assertRefused(single(remote, 0, 10L * PAGE_BYTES, 1), "no window");
        assertThat(writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT))
                .isZero();
        assertThat(isGuard(target.memory())).isTrue();
    }

    private void assertRefused(TransferRequest request, String why) {
        assertThat(writer.engine().submit(peer, request, 0)).isEqualTo(TransferEngine.REFUSED);
        assertThat(writer.engine().refusal()).contains(why);
    }

    /** More than one immediate can carry, in one batch and in one request. */
    @Test
    void shouldCountPagesOfAnyWeight() {
        fillSource(new Random(13));
        int count = 300;
        int[] all = IntStream.range(0, count).toArray();
        long cookie = 20;
        for (int weight : new int[] {1, 61, Imm.WEIGHT_MAX}) {
            long expected = (long) count * weight;
            ImmWindow window = grant(everything(), expected, ++cookie);
            long filled = cookie;
            writer.submit(
                    peer,
                    new PagedWrites(
                            writer.region(),
                            list(all),
                            target.region().descriptor(),
                            list(all),
                            PAGE_BYTES,
                            remote(window),
                            weight),
                    cookie);
            DrivenEngine.awaitBoth("weight " + weight, target, writer, () -> target.filled.contains(filled));
            assertThat(window.arrivedWeight()).isEqualTo(expected);
            assertThat(pageArrived(count - 1, count - 1)).isTrue();
            window.close(true);
        }
        assertThat(target.overshot).isEmpty();
    }

    @Test
    void shouldNotCountForTheWindowOfAnotherWriter() {
        ImmWindow window = grant(everything(), 1, 8);
        try (DrivenEngine other = open("other")) {
            Peer second = secondWriter(other, window);
            other.submit(second, new ImmOnly(remoteOfSecond, 1), 1);
            target.await(
                    "its refusal",
                    () -> target.engine().counters().of(TransferCounter.STRAYS) + target.refused.size() == 1);
            assertThat(window.arrivedWeight()).isZero();
            assertThat(target.closedAdmissions).doesNotContainKey(admission.id());
        } finally {
            target.alongside(writer);
        }
        writer.submit(peer, immediate(window, 1), 1);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(8L));
    }

    /** The faults that a writer without the key may get. */
    protected List<TransferFault> faultsOfAWrongKey() {
        return List.of(TransferFault.NOT_ADMITTED);
    }

    @Test
    void shouldNotAdmitAWrongKey() {
        byte[] wrong = admission.key().clone();
        wrong[15] ^= 1;
        Peer unproven = writer.engine().connect(target.engine().address(), wrong, "unproven");
        writer.await("the loss", () -> writer.lost.containsKey(unproven.id()));
        assertThat(writer.lost.get(unproven.id()).fault()).isIn(faultsOfAWrongKey());
        shouldCompleteARequestWithoutPages();
    }

    @Test
    void shouldDeliverMessages() {
        for (int i = 0; i < 100; i++) {
            byte[] text = ("message " + i).getBytes(StandardCharsets.UTF_8);
            DrivenEngine.awaitBoth(
                    "room",
                    writer,
                    target,
                    () -> writer.engine().send(peer, MemorySegment.ofArray(text)) == TransferEngine.ACCEPTED);
        }
        DrivenEngine.awaitBoth("all messages", target, writer, () -> target.messages.size() == 100);
        for (int i = 0; i < 100; i++) {
            assertThat(new String(target.messages.get(i), StandardCharsets.UTF_8))
                    .isEqualTo("message " + i);
        }
    }

    @Test
    void shouldLetNothingLandAfterTheAdmissionHasEnded() {
        fillSource(new Random(6));
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        ImmWindow window = grant(everything(), Long.MAX_VALUE, 1);
        int submitted = 0;
        while (submitted < 100
                && writer.engine().submit(peer, paged(window, all, all), submitted) == TransferEngine.ACCEPTED) {
            submitted++;
        }
        target.engine().revoke(admission);
        target.await("the end", () -> target.closedAdmissions.containsKey(admission.id()));
        target.memory().fill(GUARD);
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(isGuard(target.memory())).isTrue();
        assertThat(writer.endings)
                .hasSize(submitted)
                .allSatisfy((cookie, times) -> assertThat(times).isEqualTo(1));
        assertThat(writer.engine().submit(peer, immediate(window, 1), 999)).isEqualTo(TransferEngine.PEER_LOST);
    }

    @Test
    void shouldEndOnBothSidesWhenTheWriterGoes() {
        grant(everything(), 1, 1);
        writer.engine().close();
        target.await("the end of the admission", () -> target.closedAdmissions.containsKey(admission.id()));
    }

    @Test
    void shouldFailEveryWriteOnceWhenTheTargetGoes() {
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        ImmWindow window = grant(everything(), Long.MAX_VALUE, 1);
        int submitted = 0;
        while (submitted < 200
                && writer.engine().submit(peer, paged(window, all, all), submitted) == TransferEngine.ACCEPTED) {
            submitted++;
        }
        target.engine().close();
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(writer.lost.get(peer.id()).fault()).isIn(TransferFault.PEER_CLOSED, TransferFault.DISCONNECTED);
        assertThat(writer.endings)
                .hasSize(submitted)
                .allSatisfy((cookie, times) -> assertThat(times).isEqualTo(1));
    }

    @Test
    void shouldFailWhatIsOnItsWayWhenDisconnected() {
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        ImmWindow window = grant(everything(), Long.MAX_VALUE, 1);
        int submitted = 0;
        while (submitted < 200
                && writer.engine().submit(peer, paged(window, all, all), submitted) == TransferEngine.ACCEPTED) {
            submitted++;
        }
        int count = submitted;
        writer.engine().disconnect(peer);
        writer.await("all endings", () -> writer.endings.size() == count);
        assertThat(writer.endings.values()).containsOnly(1);
        assertThat(writer.engine().submit(peer, immediate(window, 1), 999)).isEqualTo(TransferEngine.PEER_LOST);
        target.await("the end of the admission", () -> target.closedAdmissions.containsKey(admission.id()));
    }

    @Test
    void shouldReportAPeerThatNobodyAnswersFor() {
        target.engine().close();
        Peer absent = writer.engine().connect(target.engine().address(), admission.key(), "absent");
        writer.await("the loss", () -> writer.lost.containsKey(absent.id()));
        assertThat(writer.lost.get(absent.id()).fault()).isEqualTo(TransferFault.UNREACHABLE);
    }
}
