package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * How much sooner several workers are through with the same writes where each has a core of its own: every worker has a clock, which
 * the bytes that it moves put forward. What cores share, such as memory's bandwidth, is not in it.
 */
final class WorkersSpeedTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final long SEED = 20261123;
    private static final int PEERS = 16;
    private static final int REQUESTS_MIN = 40;
    private static final int REQUESTS_MAX = 60;
    private static final int REQUEST_PAGES = 16;
    private static final int PAGE_BYTES = 64 << 10;
    private static final int BATCH_PAGES = 4;

    private final Random random = new Random(SEED);

    @ParameterizedTest
    @CsvSource({"2, 1.8", "4, 3.0"})
    void shouldBeThroughSoonerByNearlyTheNumberOfWorkers(int workers, double times) {
        int[] requests = random.ints(PEERS, REQUESTS_MIN, REQUESTS_MAX).toArray();
        double speedUp = (double) nsOf(1, requests) / nsOf(workers, requests);
        System.out.printf("%d workers, %d peers: %.2f times as fast as one%n", workers, PEERS, speedUp);
        assertThat(speedUp).isBetween(times, (double) workers);
    }

    /** Until the last of them is through. */
    private long nsOf(int workerCount, int[] requests) {
        List<PricedWorker> workers = IntStream.range(0, workerCount)
                .mapToObj(i -> new PricedWorker())
                .toList();
        InvokedEngine invoked = new InvokedEngine(
                EngineLimits.of(TransferOptions.defaults()),
                new EnginePorts(
                        LIB_C,
                        () -> 0,
                        random,
                        workers.stream()
                                .map(worker ->
                                        new WorkerPorts(worker, new FakeLinks(), List.<Transport>of(worker.domain)))
                                .toList()),
                () -> {});
        submitAll(invoked.engine(), workers.getFirst().domain, requests);
        List<Integer> busy =
                new ArrayList<>(IntStream.range(0, workerCount).boxed().toList());
        while (!busy.isEmpty()) {
            Integer next = busy.stream()
                    .min(Comparator.comparingLong(i -> workers.get(i).nowNs))
                    .orElseThrow();
            if (invoked.doWork(next) == 0) {
                busy.remove(next);
            }
        }
        long total = workers.stream().mapToLong(worker -> worker.nowNs).sum();
        assertThat(total).isEqualTo(IntStream.of(requests).sum() * (long) REQUEST_PAGES * PAGE_BYTES);
        return workers.stream().mapToLong(worker -> worker.nowNs).max().orElseThrow();
    }

    private static void submitAll(TransferEngine engine, FakeDomain domain, int[] requests) {
        Region region = engine.register(Memory.host(Arena.ofAuto().allocate((long) REQUEST_PAGES * PAGE_BYTES)));
        WindowArea area = WindowArea.of(
                region.descriptor(), WindowRanges.ofEqual(new long[] {0}, (long) REQUEST_PAGES * PAGE_BYTES));
        PageList pages = new PageList(IntStream.range(0, REQUEST_PAGES).toArray(), 0, REQUEST_PAGES, PAGE_BYTES, 0);
        for (int i = 0; i < requests.length; i++) {
            EngineAddress address = new EngineAddress(List.of(domain.at("peer " + i)));
            Peer peer = engine.connect(address, new byte[Admission.KEY_LENGTH_BYTES], "peer " + i);
            RemoteWindow window = engine.allow(peer, Imm.of(1, 0), area);
            TransferRequest request = new PagedWrites(region, pages, region.descriptor(), pages, PAGE_BYTES, window, 1);
            for (int cookie = 0; cookie < requests[i]; cookie++) {
                assertThat(engine.submit(peer, request, cookie)).isEqualTo(TransferEngine.ACCEPTED);
            }
        }
    }

    /** A nanosecond for each byte. */
    private static final class PricedWorker implements Poller {
        final PricedDomain domain = new PricedDomain(this);
        long nowNs;

        @Override
        public long nowNs() {
            return nowNs;
        }

        @Override
        public long tick() {
            return nowNs;
        }

        @Override
        public int poll(int timeoutMillis) {
            return 0;
        }

        @Override
        public void wake() {}

        @Override
        public void close() {}
    }

    /** Its paths take whatever is posted, in batches, and have sent it at their next duty cycle. */
    private static final class PricedDomain extends FakeDomain implements Transport {
        private final PricedWorker worker;

        PricedDomain(PricedWorker worker) {
            super("priced", 0);
            this.worker = worker;
        }

        @Override
        public Domain open(InboundPort port, Figures figures) {
            return this;
        }

        @Override
        public OutboundPaths attach(OutboundChannel channel, String location, PathEvents events, long nowNs) {
            return new PricedPath(worker, events);
        }
    }

    private static final class PricedPath implements OutboundPaths, Endpoint {
        private final PricedWorker worker;
        private final PathEvents events;
        private final List<Long> posted = new ArrayList<>();
        private boolean open;

        PricedPath(PricedWorker worker, PathEvents events) {
            this.worker = worker;
            this.events = events;
        }

        @Override
        public int post(WriteBatch batch, long postId) {
            int taken = batch.limit(BATCH_PAGES, Long.MAX_VALUE, Imm.WEIGHT_MAX);
            worker.nowNs += batch.payloadBytes();
            posted.add(postId);
            return taken;
        }

        @Override
        public int doWork(long nowNs) {
            if (!open) {
                open = true;
                events.onReady();
                events.onPathOpened(this);
                return 1;
            }
            int count = posted.size();
            posted.forEach(events::onSent);
            posted.clear();
            return count;
        }

        @Override
        public void close() {}
    }
}
