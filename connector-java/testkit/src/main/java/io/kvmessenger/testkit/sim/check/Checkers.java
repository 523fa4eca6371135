package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Ask;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.function.ToLongFunction;

/**
 * All checkers of a run, as one listener. They are independent of each other. The first violation is the run's: it is
 * thrown again at each later event, since the code under test may catch it and end a link.
 */
public final class Checkers implements WorldListener {
    private final List<WorldListener> all;
    private Violation first;

    private Checkers(List<WorldListener> all) {
        this.all = all;
    }

    /**
     * What checkers know of a run.
     *
     * @param clock the world's time
     * @param clockOf by process: its own time
     * @param resumedNs by process: when its last pause ended, or will end
     * @param ofOlderBuild by process: whether it knows no questions for cached prefixes
     * @param immsRepeat whether there are so few generations that they repeat within a fetch
     * @param comparing which of the arriving pages decoders compare
     * @param dividesPages whether prefillers' ranks divide pages, so that a source says which it has
     * @param portsThrow whether calls of ports fail
     * @param shutDownReason of processes that end in good order
     */
    public record World(
            LongSupplier clock,
            ToLongFunction<String> clockOf,
            ToLongFunction<String> resumedNs,
            Predicate<String> ofOlderBuild,
            ProtocolLimits limits,
            boolean immsRepeat,
            ChecksumMode comparing,
            boolean dividesPages,
            boolean portsThrow,
            String shutDownReason) {}

    public static WorldListener all(World world) {
        return new Checkers(always(world));
    }

    /** With the additional one for runs on a sound network. */
    public static WorldListener allInSound(World world) {
        List<WorldListener> all = always(world);
        all.add(new BoundChecker(world.clock, world.limits));
        return new Checkers(all);
    }

    private static List<WorldListener> always(World world) {
        CountChecker counts = new CountChecker();
        return new ArrayList<>(List.of(
                new VerdictChecker(
                        counts,
                        world.clockOf,
                        world.limits,
                        world.comparing != ChecksumMode.OFF,
                        world.dividesPages,
                        world.shutDownReason),
                new ComparedChecker(counts, world.comparing),
                new ContainedChecker(world.portsThrow),
                new GrantChecker(world.immsRepeat),
                new SourceChecker(),
                new ReuseChecker(),
                new PullChecker(world),
                counts,
                new ContentChecker(),
                new AccountingChecker(world.limits.capacities()),
                new TerminalChecker(),
                new ArrivalChecker()));
    }

    private void report(Consumer<WorldListener> event) {
        if (first != null) {
            throw first;
        }
        try {
            all.forEach(event);
        } catch (Violation violation) {
            first = violation;
            throw violation;
        }
    }

    @Override
    public void processStarted(String process, KvGeometry geometry, List<MemorySegment> memories) {
        report(c -> c.processStarted(process, geometry, memories));
    }

    @Override
    public void regionsRegistered(String process, List<Integer> regionIds) {
        report(c -> c.regionsRegistered(process, regionIds));
    }

    @Override
    public void pagesCompared(String process, long count) {
        report(c -> c.pagesCompared(process, count));
    }

    @Override
    public void faultContained(String process) {
        report(c -> c.faultContained(process));
    }

    @Override
    public void processDied(String process) {
        report(c -> c.processDied(process));
    }

    @Override
    public void requestRouted(String transferId, List<String> prefillers, List<String> decoders, boolean mustArrive) {
        report(c -> c.requestRouted(transferId, prefillers, decoders, mustArrive));
    }

    @Override
    public void linkClosed(String process, String peer, boolean dialled, String reason) {
        report(c -> c.linkClosed(process, peer, dialled, reason));
    }

    @Override
    public void admitted(String process, String peerName, int admissionId) {
        report(c -> c.admitted(process, peerName, admissionId));
    }

    @Override
    public void admissionClosed(String process, int admissionId) {
        report(c -> c.admissionClosed(process, admissionId));
    }

    @Override
    public void linkEnded(String process, long linkId) {
        report(c -> c.linkEnded(process, linkId));
    }

    @Override
    public void askDelivered(String from, String to, long linkId, Ask ask) {
        report(c -> c.askDelivered(from, to, linkId, ask));
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        report(c -> c.frameSent(from, to, frame));
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        report(c -> c.frameDelivered(from, to, frame));
    }

    @Override
    public void writeSubmitted(PageWrite write) {
        report(c -> c.writeSubmitted(write));
    }

    @Override
    public void sourceRead(PageWrite write) {
        report(c -> c.sourceRead(write));
    }

    @Override
    public void deviceRead(String process, int rankIndex, long offset, int lengthBytes) {
        report(c -> c.deviceRead(process, rankIndex, offset, lengthBytes));
    }

    @Override
    public void landed(PageWrite write, int fromByte, int toByte) {
        report(c -> c.landed(write, fromByte, toByte));
    }

    @Override
    public void counted(PageWrite write) {
        report(c -> c.counted(write));
    }

    @Override
    public void writeGone(PageWrite write) {
        report(c -> c.writeGone(write));
    }

    @Override
    public void writeRefused(String process, String detail) {
        report(c -> c.writeRefused(process, detail));
    }

    @Override
    public void promptEnqueued(String process, String transferId) {
        report(c -> c.promptEnqueued(process, transferId));
    }

    @Override
    public void promptRefused(String process, String transferId) {
        report(c -> c.promptRefused(process, transferId));
    }

    @Override
    public void prefillBegun(String process, String request, String transferId) {
        report(c -> c.prefillBegun(process, request, transferId));
    }

    @Override
    public void prefillPagesTaken(String process, String request, int promptTokens, List<Integer> pages) {
        report(c -> c.prefillPagesTaken(process, request, promptTokens, pages));
    }

    @Override
    public void prefillPagesShared(String process, String request, int promptTokens, List<Integer> pages) {
        report(c -> c.prefillPagesShared(process, request, promptTokens, pages));
    }

    @Override
    public void layerComputed(String process, String request, int rankIndex, int layerIndex, int endToken) {
        report(c -> c.layerComputed(process, request, rankIndex, layerIndex, endToken));
    }

    @Override
    public void prefillPagesTakenBack(String process, String request, String transferId) {
        report(c -> c.prefillPagesTakenBack(process, request, transferId));
    }

    @Override
    public void prefillEnded(String process, String request, String transferId, PrefillOutcome outcome) {
        report(c -> c.prefillEnded(process, request, transferId, outcome));
    }

    @Override
    public void contextLeft(String process, String request, int slot) {
        report(c -> c.contextLeft(process, request, slot));
    }

    @Override
    public void prefillReleased(String process, String request) {
        report(c -> c.prefillReleased(process, request));
    }

    @Override
    public void prefillSent(String process, String request, String transferId) {
        report(c -> c.prefillSent(process, request, transferId));
    }

    @Override
    public void pullAsked(
            String process, String request, String transferId, String node, long limitNs, boolean certain) {
        report(c -> c.pullAsked(process, request, transferId, node, limitNs, certain));
    }

    @Override
    public void pullDeclined(String process, String request) {
        report(c -> c.pullDeclined(process, request));
    }

    @Override
    public void pullOffered(String process, String request, int heldTokens, OfferOutcome outcome) {
        report(c -> c.pullOffered(process, request, heldTokens, outcome));
    }

    @Override
    public void offerMade(String process, String request, String transferId, int heldTokens, boolean answers) {
        report(c -> c.offerMade(process, request, transferId, heldTokens, answers));
    }

    @Override
    public void pullUsed(List<String> processes, String request) {
        report(c -> c.pullUsed(processes, request));
    }

    @Override
    public void offerWithdrawn(String process, String request) {
        report(c -> c.offerWithdrawn(process, request));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        report(c -> c.fetchAsked(fetch));
    }

    @Override
    public void transferDeclined(String process, String transferId, List<String> prefillers) {
        report(c -> c.transferDeclined(process, transferId, prefillers));
    }

    @Override
    public void transferRejected(String process, String transferId, List<String> prefillers) {
        report(c -> c.transferRejected(process, transferId, prefillers));
    }

    @Override
    public void fetchAbandoned(String process, String request) {
        report(c -> c.fetchAbandoned(process, request));
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        report(c -> c.fetchArrived(process, request, pageCount));
    }

    @Override
    public void fetchQuarantined(String process, String request, String reason) {
        report(c -> c.fetchQuarantined(process, request, reason));
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        report(c -> c.fetchFailed(process, request, reason));
    }

    @Override
    public void decodeEnded(String process, String request) {
        report(c -> c.decodeEnded(process, request));
    }

    @Override
    public void pagesOverwritten(String process, List<Integer> pages) {
        report(c -> c.pagesOverwritten(process, pages));
    }

    @Override
    public void processAtRest(String process, HeldCounts held, int freePages, int pages, FabricHoldings fabric) {
        report(c -> c.processAtRest(process, held, freePages, pages, fabric));
    }

    @Override
    public void worldAtRest() {
        report(WorldListener::worldAtRest);
    }
}
