package io.kvmessenger.benchmarks;

import io.kvmessenger.benchmarks.ControlPipe.RoundOutcome;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.io.IOException;

/** The measuring side: runs one round at a time. For one thread. */
final class Initiator {
    /**
     * The measurements of one round.
     *
     * @param durationNs from the first submit until the target had counted every page, or, if it is on another host,
     *     until its report arrived; for op pingpong, until all pings were back
     * @param cpuNs CPU time of both processes in that time
     * @param othersShare share of all cores that other programs used in that time
     * @param compiledMillis time that both JVMs have spent compiling since they began
     * @param latenciesNs one for each request; for op pingpong half a round trip
     */
    record Round(
            long durationNs, long cpuNs, double othersShare, long compiledMillis, long badBytes, long[] latenciesNs) {}

    private final KvPerfOptions options;
    private final ControlPipe control;
    private final Endpoint endpoint;
    private final RoundPages.Dealer dealer;

    Initiator(KvPerfOptions options, ControlPipe control, Endpoint endpoint) {
        this.options = options;
        this.control = control;
        this.endpoint = endpoint;
        dealer = new RoundPages.Dealer(options);
    }

    Round run() throws IOException {
        RoundPages pages = dealer.next();
        endpoint.pool().fill(pages.number(), pages.source());
        control.sendNextRound(true);
        return switch (options.op()) {
            case SINGLE, PAGED -> sendPages(pages);
            case PINGPONG -> sendPings(pages);
        };
    }

    private Round sendPages(RoundPages pages) throws IOException {
        RemoteWindow[] windows = allow(control.receiveInts(), pages);
        TransferRequest[] requests =
                options.op() == KvPerfOptions.Op.SINGLE ? singleWrites(pages, windows) : pagedWrites(pages, windows);
        endpoint.beginRound(requests.length);
        long machineNs = MachineLoad.machineNs();
        long cpuNs = MachineLoad.processNs();
        long startedNs = System.nanoTime();
        int submitted = 0;
        while (submitted < requests.length) {
            boolean roomLeft = submitted - endpoint.completedCount() < options.inFlight();
            if (roomLeft && endpoint.submit(requests[submitted], submitted)) {
                submitted++;
            } else {
                endpoint.poll();
            }
        }
        endpoint.awaitCompleted(requests.length);
        cpuNs = MachineLoad.processNs() - cpuNs;
        RoundOutcome outcome = control.receiveOutcome();
        machineNs = MachineLoad.machineNs() - machineNs;
        long filledNs = options.dial().isEmpty() ? outcome.filledNs() : System.nanoTime();
        long durationNs = filledNs - startedNs;
        cpuNs += outcome.cpuNs();
        double othersShare = MachineLoad.othersShare(machineNs, cpuNs, durationNs);
        for (int peer = 0; peer < windows.length; peer++) {
            endpoint.disallow(peer, windows[peer]);
        }
        return new Round(
                durationNs,
                cpuNs,
                othersShare,
                MachineLoad.compiledMillis() + outcome.compiledMillis(),
                control.receiveBadBytes(),
                endpoint.latenciesNs());
    }

    private RemoteWindow[] allow(int[] imms, RoundPages pages) {
        RemoteWindow[] windows = new RemoteWindow[imms.length];
        for (int peer = 0; peer < imms.length; peer++) {
            windows[peer] = endpoint.allow(peer, imms[peer], pages.targetRanges());
        }
        return windows;
    }

    private TransferRequest[] singleWrites(RoundPages pages, RemoteWindow[] windows) {
        TransferRequest[] requests = new TransferRequest[options.pageCount()];
        for (int i = 0; i < requests.length; i++) {
            requests[i] = new SingleWrite(
                    endpoint.region(),
                    pages.sourceOffset(i),
                    endpoint.peerRegion(),
                    pages.targetOffset(i),
                    options.pageBytes(),
                    windows[i % windows.length],
                    1);
        }
        return requests;
    }

    private TransferRequest[] pagedWrites(RoundPages pages, RemoteWindow[] windows) {
        int pageBytes = options.pageBytes();
        TransferRequest[] requests = new TransferRequest[Math.ceilDiv(options.pageCount(), options.batchPages())];
        for (int i = 0; i < requests.length; i++) {
            int from = i * options.batchPages();
            int count = Math.min(options.batchPages(), options.pageCount() - from);
            requests[i] = new PagedWrites(
                    endpoint.region(),
                    new PageList(pages.source(), from, count, pageBytes, 0),
                    endpoint.peerRegion(),
                    new PageList(pages.target(), from, count, pageBytes, 0),
                    pageBytes,
                    windows[i % windows.length],
                    1);
        }
        return requests;
    }

    private Round sendPings(RoundPages pages) throws IOException {
        PingSide side = PingSide.open(endpoint, control, pages, pages.source(), pages.target());
        long[] halfWaysNs = new long[side.pingCount()];
        long machineNs = MachineLoad.machineNs();
        long cpuNs = MachineLoad.processNs();
        long startedNs = System.nanoTime();
        for (int i = 0; i < halfWaysNs.length; i++) {
            long sentNs = System.nanoTime();
            side.send(i);
            side.awaitArrival(i);
            halfWaysNs[i] = (System.nanoTime() - sentNs) / 2;
        }
        long durationNs = System.nanoTime() - startedNs;
        cpuNs = MachineLoad.processNs() - cpuNs;
        machineNs = MachineLoad.machineNs() - machineNs;
        side.close();
        RoundOutcome outcome = control.receiveOutcome();
        cpuNs += outcome.cpuNs();
        double othersShare = MachineLoad.othersShare(machineNs, cpuNs, durationNs);
        // What came back must be what was sent, in the same place.
        long badBytes = control.receiveBadBytes()
                + (options.check() ? endpoint.pool().countBadBytes(pages.number(), pages.source(), pages.source()) : 0);
        long compiledMillis = MachineLoad.compiledMillis() + outcome.compiledMillis();
        return new Round(durationNs, cpuNs, othersShare, compiledMillis, badBytes, halfWaysNs);
    }

    void end() throws IOException {
        control.sendNextRound(false);
    }

    /** The smallest value that at least {@code share} of the sorted values do not exceed. */
    static long percentile(long[] sorted, double share) {
        return sorted[Math.clamp((int) Math.ceil(sorted.length * share) - 1, 0, sorted.length - 1)];
    }
}
