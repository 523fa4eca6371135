package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Pages are returned exactly once for each time they were held; an accepted prompt is enqueued once, until its pages
 * are returned or it is given up; at rest nothing is held anywhere.
 */
final class AccountingChecker implements WorldListener {
    /** So many prompts a messenger remembers as enqueued, until each messenger of their decoder has brought them. */
    private final int keptMax;

    private final Set<String> awaitingRelease = new HashSet<>();
    private final Set<String> awaitingEnd = new HashSet<>();
    /** By process and transfer: which one of the process's prompts it was. */
    private final Map<String, Integer> enqueued = new HashMap<>();
    /** By process. */
    private final Map<String, Integer> enqueuedCount = new HashMap<>();
    /** By held request, the transfer as it was enqueued. */
    private final Map<String, String> transfers = new HashMap<>();

    AccountingChecker(Capacities kept) {
        this.keptMax = kept.grantsWaitingMax() + kept.endedTransfersMax();
    }

    @Override
    public void promptEnqueued(String process, String transferId) {
        int number = enqueuedCount.merge(process, 1, Integer::sum);
        Integer before = enqueued.put(process + " " + transferId, number);
        if (before != null && number - before <= keptMax) {
            throw violation("the prompt of " + transferId + " was enqueued twice at " + process);
        }
    }

    @Override
    public void promptRefused(String process, String transferId) {
        enqueued.remove(process + " " + transferId);
    }

    /** It may still be in the engine's queue. The enqueuing is forgotten, so another rank's grant enqueues it again. */
    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        CannotDeliver answer = frame.getCannotDeliver();
        if (frame.hasCannotDeliver() && answer.getReason() == CannotDeliver.Reason.NEVER_CAME) {
            enqueued.remove(from + " " + PromptName.of(answer.getTransferId(), answer.getPromptDigest()));
        }
    }

    @Override
    public void prefillEnded(String process, String request, String transferId, PrefillOutcome outcome) {
        awaitingRelease.add(process + " " + request);
        transfers.put(process + " " + request, process + " " + transferId);
    }

    @Override
    public void prefillReleased(String process, String request) {
        if (!awaitingRelease.remove(process + " " + request)) {
            throw violation("pages of " + request + " were released and the engine had not ended it, or twice");
        }
        enqueued.remove(transfers.remove(process + " " + request));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        awaitingEnd.add(fetch.process() + " " + fetch.request());
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        ended(process, request);
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        ended(process, request);
    }

    private void ended(String process, String request) {
        if (!awaitingEnd.remove(process + " " + request)) {
            throw violation(request + " ended and had not been asked for, or twice");
        }
    }

    @Override
    public void processDied(String process) {
        awaitingRelease.removeIf(held -> held.startsWith(process + " "));
        awaitingEnd.removeIf(held -> held.startsWith(process + " "));
    }

    @Override
    public void processAtRest(String process, HeldCounts held, int freePages, int pages, FabricHoldings fabric) {
        if (!held.clean()) {
            throw violation(process + " is at rest and holds " + held);
        }
        if (freePages != pages) {
            throw violation(process + " is at rest and " + (pages - freePages) + " pages are not free");
        }
        if (fabric.windowsOpen() + fabric.allowances() + fabric.writesInFlight() > 0) {
            throw violation(process + " is at rest and its transfer engine holds " + fabric);
        }
        if (fabric.liveAdmissions() + fabric.livePeers() > fabric.sessions()) {
            throw violation(process + " is at rest with more data paths than links: " + fabric);
        }
    }

    @Override
    public void worldAtRest() {
        if (!awaitingRelease.isEmpty() || !awaitingEnd.isEmpty()) {
            throw violation("at rest still waiting: " + awaitingRelease + awaitingEnd);
        }
    }

    private static Violation violation(String sentence) {
        return new Violation("Accounting", sentence);
    }
}
