import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Writes pages of one engine's memory into another one's, and sees by counting that all have come.
 *
 * <p>Both engines are of this process, so that there is nothing to send but the writes. In two processes the target tells the
 * writer five things by any channel of yours, one that an attacker does not read: its address, the admission's key, its region's
 * descriptor, the window's immediate, and the pages that it may write to.
 *
 * <p>{@code make library} compiles and runs it. By hand: {@code java --enable-native-access=ALL-UNNAMED -cp
 * foreign-0.1.0.jar:transfer-0.1.0.jar TwoEngines.java tcp}
 */
public final class TwoEngines {
    private static final int PAGE_BYTES = 64 << 10;
    private static final int PAGE_COUNT = 16;
    /** Pages of the source, and where each of them goes. */
    private static final int[] FROM = {0, 1, 2, 9};

    private static final int[] TO = {12, 3, 4, 7};
    private static final long LIMIT_NS = 10_000_000_000L;

    private TwoEngines() {}

    public static void main(String[] args) {
        TransferOptions options = TransferOptions.defaults().withTransports(args.length == 0 ? "tcp" : args[0]);
        try (HostMemory source = HostMemory.allocate("source", (long) PAGE_BYTES * PAGE_COUNT);
                HostMemory target = HostMemory.allocate("target", (long) PAGE_BYTES * PAGE_COUNT);
                TransferEngine writer = TransferEngines.open(options);
                TransferEngine reader = TransferEngines.open(options)) {
            for (int page = 0; page < PAGE_COUNT; page++) {
                source.memory().asSlice((long) page * PAGE_BYTES, PAGE_BYTES).fill((byte) (page + 1));
            }
            write(writer, writer.register(source.shared()), reader, reader.register(target.shared()));
            check(target.memory());
        }
        System.out.println(FROM.length + " pages arrived over " + options.get(TransferOptions.TRANSPORTS).getFirst());
    }

    private static void write(TransferEngine writer, Region source, TransferEngine reader, Region target) {
        // The target lets one peer in, and opens the pages that it may write to: four pages are expected.
        Admission admission = reader.admit("writer");
        WindowArea area = WindowArea.of(
                target.descriptor(),
                WindowRanges.ofPages(TO, new long[] {0}, new long[] {PAGE_BYTES}, new long[] {PAGE_BYTES}));
        var window = reader.openWindow(admission, area, TO.length, 1);

        // The writer connects. Nothing blocks: what has happened is polled.
        Peer peer = writer.connect(reader.address(), admission.key(), "reader");
        Seen seenByWriter = new Seen();
        while (!seenByWriter.ready) {
            seenByWriter.poll(writer);
        }

        // One request for all pages; each counts one, and pages side by side on both sides leave as one write.
        var remote = writer.allow(peer, window.imm(), area);
        PagedWrites pages = new PagedWrites(
                source,
                new PageList(FROM, 0, FROM.length, PAGE_BYTES, 0),
                target.descriptor(),
                new PageList(TO, 0, TO.length, PAGE_BYTES, 0),
                PAGE_BYTES,
                remote,
                1);
        while (writer.submit(peer, pages, 2) == TransferEngine.BACK_PRESSURE) {
            seenByWriter.poll(writer);
        }

        // The target counts what has come; the writer's completion says that the source may be reused, and no more.
        Seen seenByReader = new Seen();
        while (!seenByReader.filled) {
            seenByReader.poll(reader);
        }
        while (!seenByWriter.completed) {
            seenByWriter.poll(writer);
        }
        window.close(true);
    }

    private static void check(MemorySegment target) {
        for (int i = 0; i < FROM.length; i++) {
            MemorySegment page = target.asSlice((long) TO[i] * PAGE_BYTES, PAGE_BYTES);
            for (long at = 0; at < PAGE_BYTES; at++) {
                if (page.get(ValueLayout.JAVA_BYTE, at) != FROM[i] + 1) {
                    throw new IllegalStateException("page " + TO[i] + " is not what was sent");
                }
            }
        }
    }

    /** What one engine has told: noted here, acted upon where it was polled. */
    private static final class Seen implements CompletionHandler {
        private final long startedNs = System.nanoTime();
        boolean ready;
        boolean filled;
        boolean completed;

        void poll(TransferEngine engine) {
            engine.await(1_000_000);
            engine.poll(this, 16);
            if (System.nanoTime() - startedNs > LIMIT_NS) {
                throw new IllegalStateException("nothing has come for " + LIMIT_NS / 1_000_000_000 + " s");
            }
        }

        @Override
        public void onPeerReady(Peer peer) {
            ready = true;
        }

        @Override
        public void onWindowFilled(long cookie) {
            filled = true;
        }

        @Override
        public void onWriteCompleted(long cookie) {
            completed = true;
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            throw new IllegalStateException("the write failed: " + detail);
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            throw new IllegalStateException("the other engine is lost: " + detail);
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            throw new IllegalStateException(arrivedWeight + " pages came, expected " + expectedWeight);
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {}

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            throw new IllegalStateException("a write was refused: " + detail);
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {}
    }
}
