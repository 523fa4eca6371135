package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.ReadRequest;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.engine.WindowTable.Window;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;

/**
 * This engine's reads from its peers: requests pages from their owner, part by part, and counts their arrival in a
 * window of its own.
 *
 * <p>Messenger's thread. A read ends when its window is full, where each page counts that has arrived, was refused by
 * its owner, or was never requested. So nothing of a read lands after its end, whatever the result.
 */
final class Reads {
    /** Limit on parts requested from one owner at a time. */
    static final int PARTS_MAX = InboundAdmission.READS_ASKED_MAX;

    /** Limit on reads from one owner that have not ended. */
    static final int READS_MAX = 64;

    private final ImmCounters counters;
    private final Map<Integer, Owner> owners = new HashMap<>();
    /** Keyed by slot and generation of their windows. */
    private final Map<Integer, Read> reads = new HashMap<>();

    private final MemorySegment record = MemorySegment.ofArray(new byte[ReadAsk.LENGTH_MAX_BYTES]);
    private int openParts;

    Reads(ImmCounters counters) {
        this.counters = counters;
    }

    private static final class Owner {
        final ArrayDeque<Read> asking = new ArrayDeque<>();
        int readCount;
        int openParts;
    }

    private static final class Read {
        final ReadRequest request;
        final Owner owner;
        final InboundAdmission from;
        final Window window;
        final long cookie;
        final BitSet openParts = new BitSet();
        final int pagesPerPart;
        final int partCount;
        int partsAsked;
        TransferFault fault;
        String detail;

        Read(ReadRequest request, Owner owner, InboundAdmission from, Window window, long cookie) {
            this.request = request;
            this.owner = owner;
            this.from = from;
            this.window = window;
            this.cookie = cookie;
            pagesPerPart = ReadAsk.pagesPerPart(request.pageBytes());
            partCount = Math.ceilDiv(request.sourcePages().count(), pagesPerPart);
        }

        int pageCount(int part) {
            return Math.min(pagesPerPart, request.sourcePages().count() - part * pagesPerPart);
        }

        ReadAsk ask(int part) {
            return new ReadAsk(
                    window.imm,
                    part,
                    true,
                    request.from(),
                    request.source().regionId(),
                    slice(request.sourcePages(), part),
                    request.target().descriptor().regionId(),
                    slice(request.targetPages(), part),
                    request.pageBytes());
        }

        private PageList slice(PageList all, int part) {
            return new PageList(
                    all.indices(),
                    all.from() + part * pagesPerPart,
                    pageCount(part),
                    all.strideBytes(),
                    all.offsetBytes(),
                    all.partsPerPage(),
                    all.partStrideBytes());
        }

        void fail(TransferFault why, String given) {
            if (fault == null) {
                fault = why;
                detail = given;
            }
        }
    }

    /**
     * The area in which the pages of a read land.
     *
     * @throws IllegalArgumentException when a page is outside its region, or two target pages overlap
     */
    static WindowArea areaOf(ReadRequest request, RegionTable regions) {
        if (!(request.target() instanceof RegisteredRegion region) || !region.isLiveIn(regions)) {
            throw new IllegalArgumentException("the target is not a region registered with this engine");
        }
        PageList from = request.sourcePages();
        PageList to = request.targetPages();
        int partsPerPage = Math.max(from.partsPerPage(), to.partsPerPage());
        if (partsPerPage > ReadAsk.PARTS_PER_PAGE_MAX) {
            throw new IllegalArgumentException("a page is read in " + partsPerPage + " parts, at most "
                    + ReadAsk.PARTS_PER_PAGE_MAX + "; read larger ones");
        }
        long[] offsets = new long[to.count()];
        for (int i = 0; i < offsets.length; i++) {
            offsets[i] = to.offsetOf(i);
            if (!request.source().contains(from.offsetOf(i), request.pageBytes())) {
                throw new IllegalArgumentException("source offset " + from.offsetOf(i) + " with " + request.pageBytes()
                        + " bytes is outside the peer's region of "
                        + request.source().lengthBytes() + " bytes");
            }
        }
        return WindowArea.of(region.descriptor(), WindowRanges.ofEqual(offsets, request.pageBytes()));
    }

    boolean hasRoom(Admission owner) {
        Owner known = owners.get(owner.id());
        return known == null || known.readCount < READS_MAX;
    }

    /** Number of answers that may still arrive. */
    int openParts() {
        return openParts;
    }

    /** @param window opened for the read, with a weight of one per page */
    void begin(ReadRequest request, InboundAdmission from, Window window, long cookie) {
        Owner owner = owners.computeIfAbsent(from.admission().id(), id -> new Owner());
        Read read = new Read(request, owner, from, window, cookie);
        reads.put(window.imm, read);
        owner.readCount++;
        owner.asking.add(read);
        ask(owner);
    }

    private void ask(Owner owner) {
        while (owner.openParts < PARTS_MAX && !owner.asking.isEmpty()) {
            Read read = owner.asking.element();
            int part = read.partsAsked++;
            if (!read.from.ask(read.ask(part).encode(record))) {
                throw new AssertionError("more parts are asked for than there is room for");
            }
            read.openParts.set(part);
            owner.openParts++;
            openParts++;
            if (read.partsAsked == read.partCount) {
                owner.asking.remove();
            }
        }
    }

    /** Handles an owner's answer; returns whether to request more from it. */
    boolean onAnswer(CompletionHandler handler, Admission admission, ReadAnswer answer) {
        Owner owner = owners.get(admission.id());
        if (owner == null) {
            return false;
        }
        owner.openParts--;
        openParts--;
        Read read = reads.get(answer.imm());
        if (read != null && read.owner == owner && read.openParts.get(answer.part())) {
            read.openParts.clear(answer.part());
            if (answer.outcome() != ReadAnswer.SENT) {
                refuse(handler, read, answer);
            }
        }
        boolean more = !owner.asking.isEmpty();
        ask(owner);
        return more;
    }

    /** Counts pages that will not come as if they had arrived, so that the window can fill. */
    private void refuse(CompletionHandler handler, Read read, ReadAnswer answer) {
        read.fail(TransferFault.READ_REFUSED, describe(read, answer));
        long pages = read.pageCount(answer.part());
        if (read.partsAsked < read.partCount) {
            pages += read.request.sourcePages().count() - (long) read.partsAsked * read.pagesPerPart;
            read.partsAsked = read.partCount;
            read.owner.asking.remove(read);
        }
        int outcome = counters.arrive(read.window.imm, pages);
        if (outcome == ImmCounters.FILLED) {
            end(handler, read, true);
        } else if (outcome == ImmCounters.OVERSHOT) {
            // This look is the only one that sees it: no completion of a worker follows.
            endOvershot(handler, read, counters.arrivedWeight(read.window.imm));
        }
    }

    private static String describe(Read read, ReadAnswer answer) {
        String owner = read.from.admission().peerName();
        ReadRequest request = read.request;
        if (answer.outcome() == ReadAnswer.NO_WINDOW) {
            return owner + " has no open " + request.from() + " for this engine";
        }
        String pages = "pages " + answer.part() * read.pagesPerPart + " to "
                + (answer.part() * read.pagesPerPart + read.pageCount(answer.part()) - 1) + " of the read, of "
                + request.pageBytes() + " bytes on region " + request.source().regionId() + " of " + owner;
        return answer.outcome() == ReadAnswer.TOO_LONG
                ? pages + ", are longer than what it writes at once; read them in parts"
                : pages + ", leave " + request.from();
    }

    /** Whether the window belongs to a read, which has then ended. */
    boolean onFilled(CompletionHandler handler, Window window) {
        Read read = reads.get(window.imm);
        if (read == null || read.window != window) {
            return false;
        }
        end(handler, read, true);
        return true;
    }

    /** Whether the window belongs to a read, which has then failed. */
    boolean onOvershot(CompletionHandler handler, Window window, long arrivedWeight) {
        Read read = reads.get(window.imm);
        if (read == null || read.window != window) {
            return false;
        }
        endOvershot(handler, read, arrivedWeight);
        return true;
    }

    private void endOvershot(CompletionHandler handler, Read read, long arrivedWeight) {
        read.fault = TransferFault.PROTOCOL;
        read.detail = read.from.admission().peerName() + " has written or refused " + arrivedWeight
                + " pages for a read of " + read.request.sourcePages().count();
        end(handler, read, false);
    }

    /** Ends the peer's reads: nothing of it can land any more. */
    void onAdmissionClosed(CompletionHandler handler, Admission admission, String detail) {
        Owner owner = owners.remove(admission.id());
        if (owner == null) {
            return;
        }
        openParts -= owner.openParts;
        for (Read read : reads.values().toArray(Read[]::new)) {
            if (read.owner == owner) {
                read.fail(TransferFault.PEER_CLOSED, detail);
                end(handler, read, true);
            }
        }
    }

    private void end(CompletionHandler handler, Read read, boolean drained) {
        reads.remove(read.window.imm);
        read.owner.readCount--;
        read.owner.asking.remove(read);
        read.window.close(drained);
        if (read.fault == null) {
            handler.onReadCompleted(read.cookie);
        } else {
            handler.onReadFailed(read.cookie, read.fault, read.detail);
        }
    }
}
