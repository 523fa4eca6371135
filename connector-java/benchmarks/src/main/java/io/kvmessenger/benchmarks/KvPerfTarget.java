package io.kvmessenger.benchmarks;

import io.kvmessenger.benchmarks.ControlPipe.RoundOutcome;
import io.kvmessenger.transfer.ImmWindow;
import java.io.IOException;
import java.io.PrintStream;
import java.util.List;
import java.util.stream.IntStream;

/**
 * The second process: opens a window for each round, waits until it is filled, and verifies what has arrived. Started
 * by {@link KvPerf} with its own arguments; communicates with it over its standard streams, or over a connection of
 * {@link TargetHost}.
 */
public final class KvPerfTarget {
    private final KvPerfOptions options;
    private final ControlPipe control;
    private final Endpoint endpoint;
    private final RoundPages.Dealer dealer;

    private KvPerfTarget(KvPerfOptions options, ControlPipe control, Endpoint endpoint) {
        this.options = options;
        this.control = control;
        this.endpoint = endpoint;
        dealer = new RoundPages.Dealer(options);
    }

    public static void main(String[] args) throws IOException {
        PrintStream pipe = System.out;
        System.setOut(System.err);
        try {
            run(KvPerfOptions.parse(args), new ControlPipe(System.in, pipe));
        } catch (IllegalStateException e) {
            System.err.println("kvperf's target: " + e.getMessage());
            System.exit(1);
        }
    }

    /** Runs the target's side of a whole run. */
    static void run(KvPerfOptions options, ControlPipe control) throws IOException {
        try (Endpoint endpoint = new Endpoint(options, options.targetHosts(), "initiator")) {
            control.sendBegin();
            control.sendHellos(endpoint.hellos());
            endpoint.connect(control.receiveHellos());
            control.meanwhile(endpoint::doWork);
            control.sendNextRound(true);
            new KvPerfTarget(options, control, endpoint).serve();
        }
    }

    private void serve() throws IOException {
        while (control.receiveNextRound()) {
            switch (options.op()) {
                case SINGLE, PAGED -> receivePages();
                case PINGPONG -> echoPings();
            }
        }
    }

    private void receivePages() throws IOException {
        RoundPages pages = dealer.next();
        endpoint.beginRound(0);
        List<ImmWindow> windows = IntStream.range(0, options.peers())
                .mapToObj(peer -> endpoint.openWindow(peer, pages.targetRanges(), options.pagesOf(peer)))
                .toList();
        long cpuNs = MachineLoad.processNs();
        control.sendInts(windows.stream().mapToInt(ImmWindow::imm).toArray());
        endpoint.awaitFilled(windows.size());
        cpuNs = MachineLoad.processNs() - cpuNs;
        long filledNs = endpoint.lastFilledNs();
        windows.forEach(window -> window.close(true));
        control.sendOutcome(new RoundOutcome(filledNs, cpuNs, MachineLoad.compiledMillis()));
        control.sendBadBytes(countBadBytes(pages));
    }

    /** Writes received pages back from where they landed to where they came from. */
    private void echoPings() throws IOException {
        RoundPages pages = dealer.next();
        PingSide side = PingSide.open(endpoint, control, pages, pages.target(), pages.source());
        long cpuNs = MachineLoad.processNs();
        for (int i = 0; i < side.pingCount(); i++) {
            side.awaitArrival(i);
            side.send(i);
        }
        cpuNs = MachineLoad.processNs() - cpuNs;
        long filledNs = endpoint.lastFilledNs();
        side.close();
        control.sendOutcome(new RoundOutcome(filledNs, cpuNs, MachineLoad.compiledMillis()));
        control.sendBadBytes(countBadBytes(pages));
    }

    private long countBadBytes(RoundPages pages) {
        return options.check() ? endpoint.pool().countBadBytes(pages.number(), pages.source(), pages.target()) : 0;
    }
}
