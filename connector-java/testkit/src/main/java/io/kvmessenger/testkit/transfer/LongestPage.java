package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.ReadRequest;
import io.kvmessenger.transfer.ReadWindow;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Random;
import java.util.stream.LongStream;

/**
 * Moves pages of lengths around a limit from one engine to another, as writes and as reads: what is longer is refused
 * with a reason, costs nothing else, and neither the owner nor its peer ends.
 */
public final class LongestPage {
    private static final byte GUARD = 0x5A;

    private final DrivenEngine owner;
    private final DrivenEngine other;
    private final long pageMaxBytes;
    private final Admission admission;
    private final Peer peer;
    private long cookie;

    private LongestPage(DrivenEngine owner, DrivenEngine other, long pageMaxBytes) {
        this.owner = owner;
        this.other = other;
        this.pageMaxBytes = pageMaxBytes;
        owner.alongside(other);
        other.alongside(owner);
        admission = other.engine().admit("owner");
        peer = owner.engine().connect(other.engine().address(), admission.key(), "other");
        owner.await("the peer", () -> owner.ready.contains(peer));
    }

    /** The least length of both engines' memory. */
    public static long memoryBytes(long pageMaxBytes) {
        return 2 * pageMaxBytes + 2;
    }

    /**
     * Both engines have memory of {@link #memoryBytes}; they stay the caller's.
     *
     * @param limits lengths around which pages are moved; none but the longest of a page makes a difference
     */
    public static void check(
            DrivenEngine owner, DrivenEngine other, String transport, long pageMaxBytes, long... limits) {
        LongestPage page = new LongestPage(owner, other, pageMaxBytes);
        assertThat(page.peer.transport()).isEqualTo(transport);
        long[] lengths = LongStream.concat(LongStream.of(limits), LongStream.of(1, pageMaxBytes, 2 * pageMaxBytes))
                .flatMap(limit -> LongStream.of(limit - 1, limit, limit + 1))
                .filter(length -> length > 0)
                .distinct()
                .toArray();
        for (long lengthBytes : lengths) {
            page.write(lengthBytes);
            page.read(lengthBytes);
        }
        assertThat(owner.lost).isEmpty();
        assertThat(other.closedAdmissions).isEmpty();
    }

    private WindowRanges all() {
        return WindowRanges.ofEqual(new long[] {0}, memoryBytes(pageMaxBytes));
    }

    private void fill() {
        byte[] bytes = new byte[(int) memoryBytes(pageMaxBytes)];
        new Random(++cookie).nextBytes(bytes);
        owner.memory().copyFrom(MemorySegment.ofArray(bytes));
        other.memory().fill(GUARD);
    }

    private void write(long lengthBytes) {
        fill();
        long mine = cookie;
        ImmWindow window = other.openWindow(admission, all(), 1, mine);
        RemoteWindow remote = owner.engine()
                .allow(peer, window.imm(), WindowArea.of(other.region().descriptor(), all()));
        SingleWrite write = new SingleWrite(owner.region(), 0, other.region().descriptor(), 0, lengthBytes, remote, 1);
        if (lengthBytes > pageMaxBytes) {
            assertThat(owner.engine().submit(peer, write, mine))
                    .as("a write of %d bytes", lengthBytes)
                    .isEqualTo(TransferEngine.REFUSED);
            assertThat(owner.engine().refusal()).contains("a page of " + lengthBytes, "write it in parts");
        } else {
            owner.submit(peer, write, mine);
            DrivenEngine.awaitBoth("a write", other, owner, () -> other.filled.contains(mine));
            owner.await("its end", () -> owner.completed.contains(mine));
            assertMoved(lengthBytes);
        }
        owner.engine().disallow(peer, remote);
        window.close(true);
    }

    private void read(long lengthBytes) {
        fill();
        long mine = cookie;
        ReadWindow window =
                owner.engine().openForReading(peer, WindowArea.of(owner.region().descriptor(), all()), mine);
        PageList page = new PageList(new int[] {0}, 0, 1, lengthBytes, 0);
        ReadRequest request = new ReadRequest(
                window.key(), owner.region().descriptor(), page, other.region(), page, Math.toIntExact(lengthBytes));
        assertThat(other.engine().read(admission, request, mine)).isEqualTo(TransferEngine.ACCEPTED);
        DrivenEngine.awaitBoth("a read", other, owner, () -> other.endings.containsKey(mine));
        if (lengthBytes > pageMaxBytes) {
            assertThat(other.failed.get(mine).fault()).isEqualTo(TransferFault.READ_REFUSED);
            assertThat(other.failed.get(mine).detail()).contains("longer than what it writes at once", "in parts");
            assertThat(other.memory().get(ValueLayout.JAVA_BYTE, 0)).isEqualTo(GUARD);
        } else {
            assertThat(other.completed).contains(mine);
            assertMoved(lengthBytes);
        }
        window.close();
        DrivenEngine.awaitBoth("the window", owner, other, () -> owner.closedReadWindows.contains(mine));
    }

    private void assertMoved(long lengthBytes) {
        assertThat(owner.memory()
                        .asSlice(0, lengthBytes)
                        .mismatch(other.memory().asSlice(0, lengthBytes)))
                .as("%d bytes", lengthBytes)
                .isEqualTo(-1);
        assertThat(other.memory().get(ValueLayout.JAVA_BYTE, lengthBytes))
                .as("behind it")
                .isEqualTo(GUARD);
    }
}
