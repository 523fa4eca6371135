package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferCounter;
import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The counters of an engine since it was opened, and each transport's share. Incremented by the worker, read by any
 * thread.
 *
 * <p>A transport's share is looked up once by its user, so that counting needs no look-up by name.
 */
public final class Figures {
    /** The map never changes after construction, only its values do. */
    private final Map<TransferCounter, AtomicLong> values = new EnumMap<>(TransferCounter.class);

    private final Map<String, Figures> byTransport = new ConcurrentSkipListMap<>();

    public Figures() {
        for (TransferCounter counter : TransferCounter.values()) {
            values.put(counter, new AtomicLong());
        }
    }

    /** The transport's share; what is counted there is included in these counters too. Any thread. */
    public Figures ofTransport(String name) {
        return byTransport.computeIfAbsent(name, unseen -> new Figures());
    }

    public void add(TransferCounter counter, long count) {
        values.get(counter).addAndGet(count);
    }

    public void increment(TransferCounter counter) {
        add(counter, 1);
    }

    public long of(TransferCounter counter) {
        long sum = values.get(counter).get();
        for (Figures transport : byTransport.values()) {
            sum += transport.of(counter);
        }
        return sum;
    }

    /** Worker: a path has taken the batch, which becomes one write per run of pages. */
    public void onPosted(WriteBatch batch) {
        int writeCount = batch.runCount();
        add(TransferCounter.BYTES_SENT, batch.payloadBytes());
        add(TransferCounter.PAGES_SENT, batch.pageCount());
        add(TransferCounter.WRITES_SENT, writeCount);
        add(TransferCounter.WRITES_SAVED, Math.max(0, batch.weight() - writeCount));
    }
}
