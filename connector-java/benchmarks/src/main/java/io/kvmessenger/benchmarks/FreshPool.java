package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.util.Arrays;
import java.util.Locale;
import java.util.stream.IntStream;

/**
 * Measures the speed of writing pages over shm into a pool that this peer has never written to, relative to later
 * passes over the same pool: immediately after the peers have connected, and after an idle time like that before a
 * first prompt is computed. Prints a JSON line for each.
 *
 * <p>Both engines run on the calling thread. The pool's owner has touched it, as an engine that zeroes its KV memory
 * does.
 */
public final class FreshPool {
    private static final long POOL_BYTES = 64L << 20;
    private static final int REQUEST_BYTES = 1 << 20;
    private static final int POOLS_WARM = 4;
    private static final int POOLS = 18;
    private static final int LATER_PASSES = 5;
    private static final int POLL_LIMIT = 64;
    private static final int[] RESTS_MILLIS = {0, 200};
    private static final int[] PAGES_BYTES = {64 << 10, 4 << 10};

    private FreshPool() {}

    public static void main(String[] arguments) {
        for (int pageBytes : PAGES_BYTES) {
            for (int restMillis : RESTS_MILLIS) {
                double[] shares = IntStream.range(0, POOLS_WARM + POOLS)
                        .mapToDouble(pool -> shareOfOne(pageBytes, restMillis))
                        .skip(POOLS_WARM)
                        .sorted()
                        .toArray();
                System.out.printf(
                        Locale.ROOT,
                        "{\"freshPoolBytes\": %d, \"pageBytes\": %d, \"restMillis\": %d, \"pools\": %d,"
                                + " \"firstPassShare\": %.2f, \"shareP25\": %.2f, \"shareP75\": %.2f}%n",
                        POOL_BYTES,
                        pageBytes,
                        restMillis,
                        POOLS,
                        shares[POOLS / 2],
                        shares[POOLS / 4],
                        shares[POOLS * 3 / 4]);
            }
        }
    }

    private static double shareOfOne(int pageBytes, int restMillis) {
        try (Pool pool = new Pool(pageBytes)) {
            pool.rest(restMillis);
            double first = pool.passNs();
            double[] later = new double[LATER_PASSES];
            Arrays.setAll(later, pass -> pool.passNs());
            Arrays.sort(later);
            return later[LATER_PASSES / 2] / first;
        }
    }

    /** Two engines with a pool each. For one thread. */
    private static final class Pool implements AutoCloseable {
        private final HostMemory sourceMemory = HostMemory.allocate("source", POOL_BYTES);
        private final HostMemory targetMemory = HostMemory.allocate("target", POOL_BYTES);
        private final WritePair.Counting atWriter = new WritePair.Counting();
        private final WritePair.Counting atTarget = new WritePair.Counting();
        private final TransferEngine writer;
        private final TransferEngine target;
        private final Peer peer;
        private final TransferRequest[] requests = new TransferRequest[(int) (POOL_BYTES / REQUEST_BYTES)];

        Pool(int pageBytes) {
            sourceMemory.memory().fill((byte) 1);
            targetMemory.memory().fill((byte) 0);
            TransferOptions options = TransferOptions.defaults()
                    .withTransports(TransferOptions.SHM)
                    .with(TransferOptions.THREADING, ThreadingMode.CALLER);
            writer = TransferEngines.open(options);
            target = TransferEngines.open(options);
            Region source = writer.register(sourceMemory.shared());
            Region sink = target.register(targetMemory.shared());
            Admission admission = target.admit("writer");
            peer = writer.connect(target.address(), admission.key(), "target");
            while (atWriter.ready == 0) {
                doWork();
            }
            WindowArea area = WindowArea.of(sink.descriptor(), WindowRanges.ofEqual(new long[] {0}, POOL_BYTES));
            RemoteWindow window = writer.allow(
                    peer, target.openWindow(admission, area, Long.MAX_VALUE, 0).imm(), area);
            int pages = REQUEST_BYTES / pageBytes;
            for (int i = 0; i < requests.length; i++) {
                int first = i * pages;
                PageList list = new PageList(
                        IntStream.range(0, pages).map(page -> first + page).toArray(), 0, pages, pageBytes, 0);
                requests[i] = new PagedWrites(source, list, sink.descriptor(), list, pageBytes, window, 1);
            }
        }

        void rest(int millis) {
            long endNs = System.nanoTime() + millis * 1_000_000L;
            while (System.nanoTime() - endNs < 0) {
                doWork();
            }
        }

        long passNs() {
            long startedNs = System.nanoTime();
            long end = atWriter.completed + requests.length;
            int submitted = 0;
            while (atWriter.completed < end) {
                if (submitted < requests.length
                        && writer.submit(peer, requests[submitted], submitted) == TransferEngine.ACCEPTED) {
                    submitted++;
                }
                doWork();
            }
            return System.nanoTime() - startedNs;
        }

        private void doWork() {
            doWork(writer, atWriter);
            doWork(target, atTarget);
        }

        private static void doWork(TransferEngine engine, WritePair.Counting counting) {
            if (engine.poll(counting, POLL_LIMIT) == 0) {
                engine.await(1);
            }
        }

        @Override
        public void close() {
            writer.close();
            target.close();
            sourceMemory.close();
            targetMemory.close();
        }
    }
}
