package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.GroupRequest.Scatter;
import io.kvmessenger.transfer.GroupRequest.Scatter.Slice;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.PeerGroup;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.cuda.CudaTransport;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Two engines that run on the calling thread, so that everything a write allocates can be counted for that thread:
 * submitting, posting, copying or sending, receiving, counting, completing and polling.
 *
 * <p>For one thread. A fault ends the run.
 */
final class WritePair implements AutoCloseable {
    static final int PAGES = 16;
    private static final int PAGE_BYTES = 4096;
    private static final int POLL_LIMIT = 64;

    private final PairMemory memory;
    private final int pageBytes;
    private final TransferEngine writer;
    private final TransferEngine target;
    private final Region source;
    private final Region sink;
    private final Peer peer;
    private final TransferRequest request;
    private PeerGroup group;
    private GroupRequest scatter;
    private final Counting atWriter = new Counting();
    private final Counting atTarget = new Counting();

    /** Writes of pages of 4 KiB between host memories. */
    WritePair(String transport) {
        this(options(transport), PairMemory.onHost(PAGES * PAGE_BYTES), PAGE_BYTES);
    }

    /**
     * Writes from a device to the same device, by a transport that stages both.
     *
     * @param library NVIDIA's driver, or a stand-in for it
     */
    static WritePair onDevice(String transport, String library, int pageBytes) {
        return new WritePair(
                options(transport).with(CudaTransport.LIBRARY, library),
                PairMemory.onDevice(library, (long) PAGES * pageBytes),
                pageBytes);
    }

    private static TransferOptions options(String transport) {
        return TransferOptions.defaults()
                .withTransports(transport)
                .with(TransferOptions.THREADING, ThreadingMode.CALLER);
    }

    private WritePair(TransferOptions options, PairMemory memory, int pageBytes) {
        this.memory = memory;
        this.pageBytes = pageBytes;
        writer = TransferEngines.open(options);
        target = TransferEngines.open(options);
        source = writer.register(memory.source());
        sink = target.register(memory.target());
        Admission admission = target.admit("writer");
        peer = connect(admission);
        int[] pages =
                IntStream.iterate(PAGES - 1, page -> page - 1).limit(PAGES).toArray();
        PageList list = new PageList(pages, 0, PAGES, pageBytes, 0);
        request = new PagedWrites(source, list, sink.descriptor(), list, pageBytes, window(admission, peer), 1);
    }

    private Peer connect(Admission admission) {
        int readyBefore = atWriter.ready;
        Peer connected = writer.connect(target.address(), admission.key(), "target");
        while (atWriter.ready == readyBefore) {
            doWork();
        }
        return connected;
    }

    /** Connects the writer to the target as often again, over connections that nothing is written to. */
    void connectIdle(int count) {
        for (int i = 0; i < count; i++) {
            connect(target.admit("writer"));
        }
    }

    private RemoteWindow window(Admission admission, Peer to) {
        WindowArea area =
                WindowArea.of(sink.descriptor(), WindowRanges.ofEqual(new long[] {0}, (long) PAGES * pageBytes));
        return writer.allow(
                to, target.openWindow(admission, area, Long.MAX_VALUE, 0).imm(), area);
    }

    /** Creates a group of two peers. */
    void formGroup() {
        List<Peer> members = new ArrayList<>();
        List<Slice> slices = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Admission admission = target.admit("writer");
            Peer member = connect(admission);
            members.add(member);
            slices.add(new Slice(0, PAGE_BYTES, sink.descriptor(), 0, window(admission, member), 1));
        }
        group = writer.group("both", members);
        scatter = new Scatter(source, slices);
    }

    /** Scatters a page to each member of the group this many times, waiting for each completion. */
    void scatter(int times) {
        long end = atWriter.completed + times;
        int submitted = 0;
        while (atWriter.completed < end) {
            if (submitted < times && writer.submit(group, scatter, submitted) == TransferEngine.ACCEPTED) {
                submitted++;
            }
            doWork();
        }
    }

    /** Writes {@link #PAGES} pages this many times, waiting for each completion. */
    void write(int times) {
        long end = atWriter.completed + times;
        int submitted = 0;
        while (atWriter.completed < end) {
            if (submitted < times && writer.submit(peer, request, submitted) == TransferEngine.ACCEPTED) {
                submitted++;
            }
            doWork();
        }
    }

    private void doWork() {
        doWork(writer, atWriter);
        doWork(target, atTarget);
    }

    private static void doWork(TransferEngine engine, Counting counting) {
        if (engine.poll(counting, POLL_LIMIT) == 0) {
            engine.await(1);
        }
    }

    @Override
    public void close() {
        writer.close();
        target.close();
        memory.close();
    }

    static final class Counting implements CompletionHandler {
        long completed;
        int ready;

        private static void fault(String detail) {
            throw new IllegalStateException(detail);
        }

        @Override
        public void onWriteCompleted(long cookie) {
            completed++;
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault writeFault, String detail) {
            fault("a write failed: " + writeFault + ", " + detail);
        }

        @Override
        public void onWindowFilled(long cookie) {
            fault("a window filled that is wider than all writes");
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            fault("a window overshot that is wider than all writes");
        }

        @Override
        public void onPeerReady(Peer peer) {
            ready++;
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault peerFault, String detail) {
            fault("the peer is lost: " + peerFault + ", " + detail);
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            fault("the writer closed its data paths: " + detail);
        }

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            fault("a write was refused: " + detail);
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {
            fault("an unexpected message");
        }
    }
}
