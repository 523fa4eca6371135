package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

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
     * @param immsRepeat whether there are so few generations that they repeat within a fetch
     * @param comparing whether decoders compare pages
     * @param shutDownReason of processes that end in good order
     */
    public record World(
            LongSupplier clock, ProtocolLimits limits, boolean immsRepeat, boolean comparing, String shutDownReason) {}

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
                new VerdictChecker(counts, world.clock, world.limits, world.comparing, world.shutDownReason),
                new GrantChecker(world.immsRepeat),
                new SourceChecker(),
                new ReuseChecker(),
                counts,
                new ContentChecker(),
                new AccountingChecker(),
                new TerminalChecker(),
                new ArrivalChecker()));
    }

    private void tell(Consumer<WorldListener> event) {
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
        tell(c -> c.processStarted(process, geometry, memories));
    }

    @Override
    public void processDied(String process) {
        tell(c -> c.processDied(process));
    }

    @Override
    public void requestRouted(String transferId, List<String> prefillers, List<String> decoders, boolean mustArrive) {
        tell(c -> c.requestRouted(transferId, prefillers, decoders, mustArrive));
    }

    @Override
    public void linkClosed(String process, String peer, boolean dialled, String reason) {
        tell(c -> c.linkClosed(process, peer, dialled, reason));
    }

    @Override
    public void admitted(String process, String peerName, int admissionId) {
        tell(c -> c.admitted(process, peerName, admissionId));
    }

    @Override
    public void admissionClosed(String process, int admissionId) {
        tell(c -> c.admissionClosed(process, admissionId));
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        tell(c -> c.frameSent(from, to, frame));
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        tell(c -> c.frameDelivered(from, to, frame));
    }

    @Override
    public void writeSubmitted(PageWrite write) {
        tell(c -> c.writeSubmitted(write));
    }

    @Override
    public void sourceRead(PageWrite write) {
        tell(c -> c.sourceRead(write));
    }

    @Override
    public void deviceRead(String process, int rankIndex, long offset, int lengthBytes) {
        tell(c -> c.deviceRead(process, rankIndex, offset, lengthBytes));
    }

    @Override
    public void landed(PageWrite write, int fromByte, int toByte) {
        tell(c -> c.landed(write, fromByte, toByte));
    }

    @Override
    public void counted(PageWrite write) {
        tell(c -> c.counted(write));
    }

    @Override
    public void writeGone(PageWrite write) {
        tell(c -> c.writeGone(write));
    }

    @Override
    public void writeRefused(String process, String detail) {
        tell(c -> c.writeRefused(process, detail));
    }

    @Override
    public void promptEnqueued(String process, String transferId) {
        tell(c -> c.promptEnqueued(process, transferId));
    }

    @Override
    public void promptRefused(String process, String transferId) {
        tell(c -> c.promptRefused(process, transferId));
    }

    @Override
    public void prefillBegun(String process, String request, String transferId) {
        tell(c -> c.prefillBegun(process, request, transferId));
    }

    @Override
    public void prefillPagesTaken(String process, String request, int promptTokens, List<Integer> pages) {
        tell(c -> c.prefillPagesTaken(process, request, promptTokens, pages));
    }

    @Override
    public void prefillPagesShared(String process, String request, int promptTokens, List<Integer> pages) {
        tell(c -> c.prefillPagesShared(process, request, promptTokens, pages));
    }

    @Override
    public void layerComputed(String process, String request, int rankIndex, int layerIndex, int endToken) {
        tell(c -> c.layerComputed(process, request, rankIndex, layerIndex, endToken));
    }

    @Override
    public void prefillPagesTakenBack(String process, String request, String transferId) {
        tell(c -> c.prefillPagesTakenBack(process, request, transferId));
    }

    @Override
    public void prefillEnded(String process, String request, String transferId, PrefillOutcome outcome) {
        tell(c -> c.prefillEnded(process, request, transferId, outcome));
    }

    @Override
    public void contextLeft(String process, String request, int slot) {
        tell(c -> c.contextLeft(process, request, slot));
    }

    @Override
    public void prefillReleased(String process, String request) {
        tell(c -> c.prefillReleased(process, request));
    }

    @Override
    public void prefillSent(String process, String request, String transferId) {
        tell(c -> c.prefillSent(process, request, transferId));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        tell(c -> c.fetchAsked(fetch));
    }

    @Override
    public void transferDeclined(String process, String transferId, List<String> prefillers) {
        tell(c -> c.transferDeclined(process, transferId, prefillers));
    }

    @Override
    public void transferRejected(String process, String transferId, List<String> prefillers) {
        tell(c -> c.transferRejected(process, transferId, prefillers));
    }

    @Override
    public void fetchAbandoned(String process, String request) {
        tell(c -> c.fetchAbandoned(process, request));
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        tell(c -> c.fetchArrived(process, request, pageCount));
    }

    @Override
    public void fetchQuarantined(String process, String request, String reason) {
        tell(c -> c.fetchQuarantined(process, request, reason));
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        tell(c -> c.fetchFailed(process, request, reason));
    }

    @Override
    public void decodeEnded(String process, String request) {
        tell(c -> c.decodeEnded(process, request));
    }

    @Override
    public void pagesOverwritten(String process, List<Integer> pages) {
        tell(c -> c.pagesOverwritten(process, pages));
    }

    @Override
    public void processAtRest(String process, HeldCounts held, int freePages, int pages, FabricHoldings fabric) {
        tell(c -> c.processAtRest(process, held, freePages, pages, fabric));
    }

    @Override
    public void worldAtRest() {
        tell(WorldListener::worldAtRest);
    }
}
