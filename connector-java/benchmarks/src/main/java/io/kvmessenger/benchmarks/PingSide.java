package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.io.IOException;

/**
 * One side of a round of op pingpong: a window for each ping to receive, and a write for each to send. Both sides use
 * the round's pages in the same order, so page {@code i} goes back and forth by write {@code i}.
 *
 * <p>For one thread.
 */
final class PingSide {
    private final Endpoint endpoint;
    private final ImmWindow[] windows;
    private final RemoteWindow[] remotes;
    private final TransferRequest[] writes;

    private PingSide(Endpoint endpoint, ImmWindow[] windows, RemoteWindow[] remotes, TransferRequest[] writes) {
        this.endpoint = endpoint;
        this.windows = windows;
        this.remotes = remotes;
        this.writes = writes;
    }

    /** Opens this side's windows and receives the other's. Pings may start when both have returned. */
    static PingSide open(Endpoint endpoint, ControlPipe control, RoundPages pages, int[] sendFrom, int[] sendTo)
            throws IOException {
        int pingCount = pages.target().length;
        endpoint.beginRound(pingCount);
        RoundPages outward = new RoundPages(pages.number(), sendFrom, sendTo, pages.pageBytes());
        RoundPages inward = new RoundPages(pages.number(), sendTo, sendFrom, pages.pageBytes());
        ImmWindow[] windows = new ImmWindow[pingCount];
        int[] imms = new int[pingCount];
        for (int i = 0; i < pingCount; i++) {
            windows[i] = endpoint.openWindow(0, inward.targetRange(i), 1);
            imms[i] = windows[i].imm();
        }
        control.sendInts(imms);
        int[] peerImms = control.receiveInts();
        RemoteWindow[] remotes = new RemoteWindow[pingCount];
        TransferRequest[] writes = new TransferRequest[pingCount];
        for (int i = 0; i < pingCount; i++) {
            remotes[i] = endpoint.allow(0, peerImms[i], outward.targetRange(i));
            writes[i] = new SingleWrite(
                    endpoint.region(),
                    outward.sourceOffset(i),
                    endpoint.peerRegion(),
                    outward.targetOffset(i),
                    pages.pageBytes(),
                    remotes[i],
                    1);
        }
        return new PingSide(endpoint, windows, remotes, writes);
    }

    int pingCount() {
        return writes.length;
    }

    void send(int i) {
        endpoint.submitSurely(writes[i], i);
    }

    void awaitArrival(int i) {
        endpoint.awaitFilled(i + 1);
    }

    void close() {
        endpoint.awaitCompleted(writes.length);
        for (int i = 0; i < writes.length; i++) {
            windows[i].close(true);
            endpoint.disallow(0, remotes[i]);
        }
    }
}
