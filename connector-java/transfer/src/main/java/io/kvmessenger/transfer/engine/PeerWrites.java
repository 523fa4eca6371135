package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import io.kvmessenger.transfer.staging.GatheredWrites;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * The writes to one peer: a {@link WriteLedger} for each traffic class, so that urgent writes wait for no others.
 *
 * <p>Threading is that of the ledgers; the submitter creates one at the class's first write. A post's id names its
 * ledger in its low bits. Which class may be posted is {@link PathLink}'s to decide.
 */
final class PeerWrites implements GatheredWrites.Splitter {
    private static final int CLASS_BITS = 2;
    private static final int CLASS_MASK = (1 << CLASS_BITS) - 1;
    private static final TrafficClass[] CLASSES = TrafficClass.values();
    private static final int URGENT = TrafficClass.URGENT.rank();

    private final int capacity;
    private final WriteLedger.Completions completions;
    private final WriteLedger urgent;
    private final AtomicReferenceArray<WriteLedger> ledgers = new AtomicReferenceArray<>(TrafficClass.COUNT);
    /** The class of the batch that {@link #next} has described. */
    private int offered = URGENT;

    /** @param capacity of each class: a power of two */
    PeerWrites(int capacity, WriteLedger.Completions completions) {
        this.capacity = capacity;
        this.completions = completions;
        urgent = new WriteLedger(capacity, completions);
        ledgers.setPlain(URGENT, urgent);
    }

    /** Submitter: whether {@link #offer} of such a write will succeed. */
    boolean hasRoom(TrafficClass trafficClass) {
        WriteLedger ledger = ledgers.getPlain(trafficClass.rank());
        return ledger == null || ledger.hasRoom();
    }

    /** Submitter: appends to the writes of its class; false when they are full. */
    boolean offer(TransferRequest request, long cookie, int origin) {
        int at = request.trafficClass().rank();
        WriteLedger ledger = ledgers.getPlain(at);
        if (ledger == null) {
            ledger = new WriteLedger(capacity, completions);
            ledgers.setRelease(at, ledger);
        }
        return ledger.offer(request, cookie, origin);
    }

    /** Null while the class has had no write. */
    private WriteLedger ledger(int at) {
        return at == URGENT ? urgent : ledgers.getAcquire(at);
    }

    /** Worker: whether anything waits for a path. */
    boolean hasWork() {
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            if (hasWork(at)) {
                return true;
            }
        }
        return false;
    }

    /** Worker: whether everything submitted has completed or failed. */
    boolean haveEnded() {
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            WriteLedger ledger = ledger(at);
            if (ledger != null && !ledger.isEmpty()) {
                return false;
            }
        }
        return true;
    }

    private boolean hasWork(int at) {
        WriteLedger ledger = ledger(at);
        return ledger != null && ledger.hasWork();
    }

    /** Worker: bytes waiting for a path; may include a request that is still being submitted. */
    long waitingBytes() {
        long sum = 0;
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            WriteLedger ledger = ledger(at);
            sum += ledger == null ? 0 : ledger.waitingBytes();
        }
        return sum;
    }

    /** Any thread: bytes that have not ended; may include a request that is still being submitted. */
    long queuedBytes() {
        long sum = 0;
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            sum += queuedBytes(at);
        }
        return sum;
    }

    /** Any thread: the same of one class, by its rank. */
    long queuedBytes(int at) {
        WriteLedger ledger = ledger(at);
        return ledger == null ? 0 : ledger.queuedBytes();
    }

    /** Worker: bytes that have ended. */
    long endedBytes() {
        long sum = 0;
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            sum += endedBytes(at);
        }
        return sum;
    }

    /** Worker: the same of one class, by its rank. */
    long endedBytes(int at) {
        WriteLedger ledger = ledger(at);
        return ledger == null ? 0 : ledger.endedBytes();
    }

    /**
     * Worker: describes the next batch to post: of the most urgent class that has one and that may go by the link now;
     * false when there is none, or too much is in flight.
     */
    boolean next(WriteBatch batch, PathLink link) {
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            WriteLedger ledger = ledger(at);
            if (ledger == null || !ledger.hasWork()) {
                continue;
            }
            if (link.mayPost(CLASSES[at], ledger.inFlightBytes()) && ledger.next(batch)) {
                offered = at;
                link.shorten(CLASSES[at], batch);
                return true;
            }
        }
        return false;
    }

    /** Worker: the class of the batch that {@link #next} has described. */
    TrafficClass offered() {
        return CLASSES[offered];
    }

    /** Worker: the id of the next post, of what {@link #next} has described. */
    long nextPostId() {
        return idOf(ledger(offered).nextPostId(), offered);
    }

    private static long idOf(long ledgersId, int at) {
        return ledgersId << CLASS_BITS | at;
    }

    /** Worker: a path has accepted the batch described by {@link #next}, or its first part. */
    void posted(WriteBatch batch, Endpoint by) {
        ledger(offered).posted(batch, by);
    }

    /** Worker: a post does not need its source any more. An id that is not in flight has no effect. */
    void sent(long postId) {
        ledger((int) postId & CLASS_MASK).sent(postId >> CLASS_BITS);
    }

    /** Whether a post of any class can be split. */
    @Override
    public boolean canSplit() {
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            WriteLedger ledger = ledger(at);
            if (ledger != null && !ledger.canSplit()) {
                return false;
            }
        }
        return true;
    }

    @Override
    public long split(long postId, int unitCount) {
        int at = (int) postId & CLASS_MASK;
        return idOf(ledger(at).split(postId >> CLASS_BITS, unitCount), at);
    }

    /** Worker: the path is gone; its unsent slices wait for another path. Returns the number of posts. */
    int reclaim(Endpoint lost) {
        int count = 0;
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            WriteLedger ledger = ledger(at);
            count += ledger == null ? 0 : ledger.reclaim(lost);
        }
        return count;
    }

    /** Worker: whether the path holds posts not reported as sent. */
    boolean isUnderWay(Endpoint by) {
        return oldestPost(by) != WriteLedger.NO_POST;
    }

    /** Worker: the oldest post of the path that is not reported as sent, of the most urgent class that it has posts of. */
    long oldestPost(Endpoint by) {
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            WriteLedger ledger = ledger(at);
            long oldest = ledger == null ? WriteLedger.NO_POST : ledger.oldestPost(by);
            if (oldest != WriteLedger.NO_POST) {
                return idOf(oldest, at);
            }
        }
        return WriteLedger.NO_POST;
    }

    /** Worker: fails everything that has not completed; all paths are closed already. Returns how many. */
    int failAll(TransferFault fault, String detail) {
        int failed = 0;
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            WriteLedger ledger = ledger(at);
            failed += ledger == null ? 0 : ledger.failAll(fault, detail);
        }
        return failed;
    }
}
