package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.ReadKey;
import io.kvmessenger.transfer.ReadRequest;
import io.kvmessenger.transfer.ReadWindow;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Requirements on every transport for reads: {@code target} reads pages of {@code writer}, over the link by which that
 * writes. A transport's test inherits all of it.
 */
@Timeout(900)
public abstract class ReadContractTest extends WriterAndTarget {
    private static final int ROUNDS = 40;
    /** The content of the owner's pages after they are reused. */
    private static final byte REUSED = 0x77;

    private ReadWindow open(WindowRanges ranges, long cookie) {
        return writer.engine()
                .openForReading(peer, WindowArea.of(writer.region().descriptor(), ranges), cookie);
    }

    private ReadRequest request(ReadKey key, PageList from, PageList to, int pageBytes) {
        return new ReadRequest(key, writer.region().descriptor(), from, target.region(), to, pageBytes);
    }

    private ReadRequest request(ReadWindow window, int[] from, int[] to) {
        return request(window.key(), list(from), list(to), PAGE_BYTES);
    }

    private void read(ReadRequest request, long cookie) {
        DrivenEngine.awaitBoth("room for read " + cookie, target, writer, () -> {
            int result = target.engine().read(admission, request, cookie);
            assertThat(result).isIn(TransferEngine.ACCEPTED, TransferEngine.BACK_PRESSURE);
            return result == TransferEngine.ACCEPTED;
        });
    }

    private void awaitEnd(long cookie) {
        DrivenEngine.awaitBoth("read " + cookie, target, writer, () -> target.endings.containsKey(cookie));
    }

    private void awaitClosed(ReadWindow window, long cookie) {
        window.close();
        DrivenEngine.awaitBoth("the window to close", writer, target, () -> writer.closedReadWindows.contains(cookie));
    }

    private void assertNothingIsHeld() {
        DrivenEngine.awaitBoth(
                "all answers",
                writer,
                target,
                () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
        assertThat(target.engine().counters().of(TransferCounter.WINDOWS_OPEN)).isZero();
        assertThat(target.endings.values()).containsOnly(1);
    }

    @Test
    void shouldReadPagesInAnyOrderAndNothingElse() {
        Random random = new Random(1);
        fillSource(random);
        int[] from = shuffled(300, random);
        int[] to = shuffled(300, random);
        ReadWindow window = open(pages(from), 1);
        boolean[] right = {true};
        target.onFilled(() -> {
            for (int i = 0; i < from.length; i++) {
                right[0] &= pageArrived(from[i], to[i]);
            }
        });
        read(request(window, from, to), 5);
        awaitEnd(5);
        assertThat(target.completed).containsExactly(5L);
        assertThat(right[0]).as("all was visible when the read completed").isTrue();
        int[] others = IntStream.range(0, PAGE_COUNT)
                .filter(page -> IntStream.of(to).noneMatch(written -> written == page))
                .toArray();
        for (int page : others) {
            assertThat(isGuard(target.memory().asSlice((long) page * PAGE_BYTES, PAGE_BYTES)))
                    .as("page %d", page)
                    .isTrue();
        }
        assertThat(writer.completed)
                .as("what the owner writes is not its user's")
                .isEmpty();
        awaitClosed(window, 1);
        assertNothingIsHeld();
    }

    /** Far more than is requested from an owner at a time, in several concurrent reads. */
    @Test
    void shouldReadMoreThanIsAskedForAtOnce() {
        fillSource(new Random(2));
        int pageBytes = 64;
        int half = (int) MEMORY_BYTES / pageBytes / 2;
        int[] first = IntStream.range(0, half).toArray();
        int[] second = IntStream.range(half, 2 * half).toArray();
        ReadWindow window = open(everything(), 1);
        for (int i = 0; i < 2; i++) {
            int[] all = i == 0 ? first : second;
            PageList list = new PageList(all, 0, all.length, pageBytes, 0);
            read(request(window.key(), list, list, pageBytes), i);
        }
        awaitEnd(0);
        awaitEnd(1);
        assertThat(target.failed).isEmpty();
        assertThat(target.memory().mismatch(writer.memory())).isEqualTo(-1);
        assertNothingIsHeld();
    }

    /** A page of one side holds several of the other's, and the requested range begins within one. */
    @Test
    void shouldReadPartsOfPages() {
        fillSource(new Random(3));
        int partBytes = PAGE_BYTES / 4;
        int[] from = {9, 4, 30};
        int[] to = IntStream.range(100, 108).toArray();
        ReadWindow window = open(everything(), 1);
        PageList parts = new PageList(from, 3, 7, PAGE_BYTES, 0, 4, partBytes);
        PageList whole = new PageList(to, 1, 7, partBytes, 0);
        read(request(window.key(), parts, whole, partBytes), 1);
        awaitEnd(1);
        assertThat(target.failed).isEmpty();
        for (int i = 0; i < 7; i++) {
            assertThat(writer.memory()
                            .asSlice(parts.offsetOf(i), partBytes)
                            .mismatch(target.memory().asSlice(whole.offsetOf(i), partBytes)))
                    .as("part %d", i)
                    .isEqualTo(-1);
        }
        assertThat(isGuard(target.memory().asSlice(0, whole.offsetOf(0)))).isTrue();
    }

    @Test
    void shouldRefuseWhatWasNotOpened() {
        fillSource(new Random(4));
        ReadWindow window = open(pages(1, 2, 9), 1);
        ReadKey key = window.key();
        PageList right = list(1, 2);
        assertRefused(request(window, new int[] {1, 3}, new int[] {5, 6}), 1, "leave read window " + key.serial());
        PageList ahead = new PageList(new int[] {1}, 0, 1, PAGE_BYTES, -1);
        assertRefused(request(key, ahead, list(5), PAGE_BYTES - 1), 2, "leave");
        assertRefused(request(new ReadKey(key.serial(), key.key() + 1), right, list(5, 6), PAGE_BYTES), 3, "no open");
        assertRefused(request(new ReadKey(key.serial() + 1, key.key()), right, list(5, 6), PAGE_BYTES), 4, "no open");
        awaitClosed(window, 1);
        assertRefused(request(window, new int[] {1}, new int[] {5}), 5, "no open");
        assertThat(isGuard(target.memory())).isTrue();
        assertThat(writer.lost).as("a read that is refused costs nothing else").isEmpty();
        ReadWindow again = open(pages(7), 2);
        read(request(again, new int[] {7}, new int[] {7}), 6);
        awaitEnd(6);
        assertThat(pageArrived(7, 7)).isTrue();
        assertNothingIsHeld();
    }

    private void assertRefused(ReadRequest request, long cookie, String why) {
        read(request, cookie);
        awaitEnd(cookie);
        assertThat(target.failed.get(cookie).fault()).isEqualTo(TransferFault.READ_REFUSED);
        assertThat(target.failed.get(cookie).detail()).contains(why);
    }

    @Test
    void shouldNotLetAnotherPeerReadAWindow() {
        ReadWindow window = open(everything(), 1);
        try (DrivenEngine other = open("other")) {
            other.memory().fill(GUARD);
            other.alongside(writer);
            Admission own = other.engine().admit("writer");
            Peer second = writer.engine().connect(other.engine().address(), own.key(), "other");
            DrivenEngine.awaitBoth("the peer", writer, other, () -> writer.ready.contains(second));
            ReadRequest stolen = new ReadRequest(
                    window.key(), writer.region().descriptor(), list(1), other.region(), list(1), PAGE_BYTES);
            assertThat(other.engine().read(own, stolen, 1)).isEqualTo(TransferEngine.ACCEPTED);
            DrivenEngine.awaitBoth("the end", other, writer, () -> other.failed.containsKey(1L));
            assertThat(other.failed.get(1L).fault()).isEqualTo(TransferFault.READ_REFUSED);
            assertThat(isGuard(other.memory())).isTrue();
        }
    }

    /** One part is granted, the next is not: granted pages land before the end of the read, and nothing after it. */
    @Test
    void shouldLetNothingLandAfterAReadHasFailed() {
        fillSource(new Random(5));
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        for (int round = 0; round < ROUNDS; round++) {
            int missing = round * 7 % PAGE_COUNT;
            ReadWindow window =
                    open(pages(IntStream.of(all).filter(page -> page != missing).toArray()), round);
            read(request(window, all, all), round);
            awaitEnd(round);
            assertThat(target.failed.get((long) round).fault()).isEqualTo(TransferFault.READ_REFUSED);
            target.memory().fill(GUARD);
            awaitClosed(window, round);
            assertNothingIsHeld();
            marker(round);
            assertThat(isGuard(target.memory())).as("round %d", round).isTrue();
        }
    }

    /** Sent after everything else from the owner. */
    private void marker(long cookie) {
        var window = grant(everything(), 1, cookie);
        RemoteWindow remote = remote(window);
        writer.submit(peer, immediate(window, 1), cookie);
        DrivenEngine.awaitBoth("the marker", target, writer, () -> target.filled.contains(cookie));
        writer.engine().disallow(peer, remote);
        window.close(true);
    }

    /** The owner reuses its pages as soon as it may. */
    @Test
    void shouldReadNothingOfAClosedWindow() {
        Random random = new Random(6);
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        byte[] original = new byte[(int) MEMORY_BYTES];
        long cookie = 0;
        for (int round = 0; round < ROUNDS; round++) {
            random.nextBytes(original);
            for (int i = 0; i < original.length; i++) {
                original[i] = (byte) (original[i] & 0x3f); // differs from the content of reused pages
            }
            MemorySegment.copy(original, 0, writer.memory(), ValueLayout.JAVA_BYTE, 0, original.length);
            target.memory().fill((byte) 0);
            ReadWindow window = open(everything(), round);
            int reads = 4;
            for (int i = 0; i < reads; i++) {
                read(request(window, all, all), cookie + i);
            }
            long cycles = random.nextInt(12);
            for (int i = 0; i < cycles; i++) {
                target.poll();
                writer.poll();
                writer.engine().await(1);
            }
            awaitClosed(window, round);
            writer.memory().fill(REUSED);
            for (int i = 0; i < reads; i++) {
                awaitEnd(cookie + i);
            }
            cookie += reads;
            for (long i = 0; i < MEMORY_BYTES; i++) {
                if (target.memory().get(ValueLayout.JAVA_BYTE, i) == REUSED) {
                    throw new AssertionError(
                            "round " + round + ": byte " + i + " was read after the window was closed");
                }
            }
            assertNothingIsHeld();
        }
        assertThat(target.failed.values()).allMatch(failure -> failure.fault() == TransferFault.READ_REFUSED);
    }

    @Test
    void shouldEndEveryReadOnceWhenItsOwnerIsLost() {
        fillSource(new Random(7));
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        ReadWindow window = open(everything(), 1);
        for (int i = 0; i < ROUNDS; i++) {
            read(request(window, all, all), i);
        }
        writer.engine().disconnect(peer);
        DrivenEngine.awaitBoth("all to end", target, writer, () -> target.endings.size() == ROUNDS);
        DrivenEngine.awaitBoth(
                "the admission", target, writer, () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(target.failed.values()).allMatch(failure -> failure.fault() == TransferFault.PEER_CLOSED);
        assertThat(target.engine().read(admission, request(window, all, all), 99))
                .isEqualTo(TransferEngine.PEER_LOST);
        awaitClosed(window, 1);
        assertNothingIsHeld();
    }

    @Test
    void shouldEndAReadWhenItsReaderRevokesTheAdmission() {
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        ReadWindow window = open(everything(), 1);
        read(request(window, all, all), 1);
        target.engine().revoke(admission);
        awaitEnd(1);
        DrivenEngine.awaitBoth("the loss", writer, target, () -> writer.lost.containsKey(peer.id()));
        awaitClosed(window, 1);
        assertNothingIsHeld();
    }

    @Test
    void shouldRefuseWhatCannotBeRead() {
        ReadWindow window = open(everything(), 1);
        assertNotTaken(request(window, new int[] {0, 1}, new int[] {3, 3}), "overlap");
        assertNotTaken(request(window, new int[] {0}, new int[] {PAGE_COUNT}), "region");
        assertNotTaken(request(window, new int[] {PAGE_COUNT}, new int[] {0}), "outside the peer's region");
        assertThatThrownBy(() -> request(window, new int[0], new int[0])).hasMessageContaining("at least 1");
        assertThatThrownBy(() -> writer.region().deregister()).hasMessageContaining("windows");
        awaitClosed(window, 1);
        assertThat(target.endings).isEqualTo(Map.of());
    }

    private void assertNotTaken(ReadRequest request, String why) {
        assertThat(target.engine().read(admission, request, 1)).isEqualTo(TransferEngine.REFUSED);
        assertThat(target.engine().refusal()).contains(why);
    }
}
