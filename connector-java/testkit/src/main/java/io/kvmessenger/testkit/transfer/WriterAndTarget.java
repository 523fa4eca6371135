package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/**
 * The fixture of the transports' contract tests: {@code writer} writes into {@code target}. Both run in this process,
 * on their own workers.
 */
public abstract class WriterAndTarget {
    protected static final int PAGE_BYTES = 4096;
    protected static final int PAGE_COUNT = 512;
    protected static final long MEMORY_BYTES = (long) PAGE_BYTES * PAGE_COUNT;
    protected static final byte GUARD = 0x5A;

    protected DrivenEngine writer;
    protected DrivenEngine target;
    protected Admission admission;
    protected Peer peer;
    private final Map<ImmWindow, RemoteWindow> remotes = new HashMap<>();
    /** The second writer's handle of the window that {@link #secondWriter} was told of. */
    protected RemoteWindow remoteOfSecond;

    /** The transport's name. */
    protected abstract String transport();

    protected TransferOptions options() {
        return TransferOptions.defaults().withTransports(transport()).with(TcpTransport.STREAMS_PER_PEER, 4);
    }

    /** An engine with a region. */
    protected DrivenEngine open(String name) {
        return new DrivenEngine(options(), name, MEMORY_BYTES);
    }

    @BeforeEach
    void connect() {
        writer = open("writer");
        target = open("target");
        writer.alongside(target);
        target.alongside(writer);
        admission = target.engine().admit("writer");
        peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        writer.await("the peer to be ready", () -> writer.ready.contains(peer));
        target.memory().fill(GUARD);
    }

    @AfterEach
    void close() {
        writer.close();
        target.close();
    }

    /** The whole of the target's region. */
    protected static WindowRanges everything() {
        return WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
    }

    protected static WindowRanges pages(int... indices) {
        return WindowRanges.ofEqual(
                IntStream.of(indices).mapToLong(i -> (long) i * PAGE_BYTES).toArray(), PAGE_BYTES);
    }

    protected static PageList list(int... indices) {
        return new PageList(indices, 0, indices.length, PAGE_BYTES, 0);
    }

    /** Opens a window at the target and tells the writer of it. */
    protected ImmWindow grant(WindowRanges ranges, long expectedWeight, long cookie) {
        ImmWindow window = target.openWindow(admission, ranges, expectedWeight, cookie);
        allow(window, ranges);
        return window;
    }

    protected void allow(ImmWindow window, WindowRanges ranges) {
        WindowArea area = WindowArea.of(target.region().descriptor(), ranges);
        remotes.put(window, writer.engine().allow(peer, window.imm(), area));
    }

    /** The writer's handle of a window of the target. */
    protected RemoteWindow remote(ImmWindow window) {
        return remotes.get(window);
    }

    protected ImmOnly immediate(ImmWindow window, int weight) {
        return new ImmOnly(remote(window), weight);
    }

    protected PagedWrites paged(ImmWindow window, int[] sources, int[] targets) {
        return paged(window, 1, sources, targets);
    }

    protected PagedWrites paged(ImmWindow window, int weight, int[] sources, int[] targets) {
        return new PagedWrites(
                writer.region(),
                list(sources),
                target.region().descriptor(),
                list(targets),
                PAGE_BYTES,
                remote(window),
                weight);
    }

    protected SingleWrite single(RemoteWindow window, long sourceOffset, long targetOffset, long lengthBytes) {
        return single(window, 1, sourceOffset, targetOffset, lengthBytes);
    }

    protected SingleWrite single(
            RemoteWindow window, int weight, long sourceOffset, long targetOffset, long lengthBytes) {
        return new SingleWrite(
                writer.region(), sourceOffset, target.region().descriptor(), targetOffset, lengthBytes, window, weight);
    }

    protected void fillSource(Random random) {
        byte[] bytes = new byte[(int) MEMORY_BYTES];
        random.nextBytes(bytes);
        MemorySegment.copy(bytes, 0, writer.memory(), ValueLayout.JAVA_BYTE, 0, bytes.length);
    }

    protected static int[] shuffled(int count, Random random) {
        int[] indices = IntStream.range(0, PAGE_COUNT).toArray();
        for (int i = indices.length - 1; i > 0; i--) {
            int j = random.nextInt(i + 1);
            int swap = indices[i];
            indices[i] = indices[j];
            indices[j] = swap;
        }
        return Arrays.copyOf(indices, count);
    }

    protected boolean pageArrived(int source, int at) {
        return writer.memory()
                        .asSlice((long) source * PAGE_BYTES, PAGE_BYTES)
                        .mismatch(target.memory().asSlice((long) at * PAGE_BYTES, PAGE_BYTES))
                == -1;
    }

    protected static boolean isGuard(MemorySegment bytes) {
        for (long i = 0; i < bytes.byteSize(); i++) {
            if (bytes.get(ValueLayout.JAVA_BYTE, i) != GUARD) {
                return false;
            }
        }
        return true;
    }

    /** Another admitted writer, which was told of a window that does not belong to it. */
    protected Peer secondWriter(DrivenEngine other, ImmWindow window) {
        other.alongside(target);
        target.alongside(other);
        Admission own = target.engine().admit("other");
        Peer second = other.engine().connect(target.engine().address(), own.key(), "target");
        other.await("the peer to be ready", () -> other.ready.contains(second));
        WindowArea area = WindowArea.of(target.region().descriptor(), everything());
        remoteOfSecond = other.engine().allow(second, window.imm(), area);
        return second;
    }
}
