package io.kvmessenger.transfer.spi;

import java.util.concurrent.atomic.AtomicLong;

/** What an engine has done since it was opened. Counted by the worker, read by any thread. */
public final class Figures {
    public final AtomicLong bytesSent = new AtomicLong();
    public final AtomicLong bytesReceived = new AtomicLong();
    public final AtomicLong pagesSent = new AtomicLong();
    public final AtomicLong writesSent = new AtomicLong();
    public final AtomicLong writesSaved = new AtomicLong();
    public final AtomicLong pagesReceived = new AtomicLong();
    public final AtomicLong writesRefused = new AtomicLong();
    public final AtomicLong strays = new AtomicLong();
    public final AtomicLong pathsOpened = new AtomicLong();
    public final AtomicLong pathsLost = new AtomicLong();
    public final AtomicLong pathsRejected = new AtomicLong();

    /** Worker: a path has taken the batch, which leaves as a write for each run of pages. */
    public void onPosted(WriteBatch batch) {
        int writeCount = batch.runCount();
        bytesSent.addAndGet(batch.payloadBytes());
        pagesSent.addAndGet(batch.pageCount());
        writesSent.addAndGet(writeCount);
        writesSaved.addAndGet(Math.max(0, batch.weight() - writeCount));
    }
}
