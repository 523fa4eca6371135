package io.kvmessenger.messenger;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Preempted prompts whose writes have not all completed, and who waits for that. Owned by the messenger's thread; it
 * stops nothing itself.
 */
final class Fences {
    private final boolean contextFollows;
    private final List<Prefill> busy = new ArrayList<>();

    /**
     * @param contextFollows decoders take nothing without the context rows, which leave when all KV has left: a fence
     *     then waits for rows that are under way, and not for KV that will not be taken
     */
    Fences(boolean contextFollows) {
        this.contextFollows = contextFollows;
    }

    /** Keeps a preempted prompt if anything still reads its pages. */
    void add(Prefill prefill, CompletableFuture<Void> fenced) {
        if (!prefill.writesOver()) {
            prefill.fenced = fenced;
            busy.add(prefill);
        }
    }

    /** A fence that was not reached in its time is asked for again: whoever asked before has gone. */
    void waitAgain(List<String> requests, CompletableFuture<Void> fenced) {
        for (Prefill prefill : busy) {
            if (requests.contains(prefill.request)) {
                prefill.fenced = fenced;
            }
        }
    }

    /** The last write of a prompt has completed. */
    void onQuiet(Prefill prefill) {
        if (prefill.fenced != null && prefill.writesOver() && busy.remove(prefill)) {
            completeIfQuiet(prefill.fenced);
        }
    }

    void completeIfQuiet(CompletableFuture<Void> fenced) {
        if (busy.stream().noneMatch(p -> p.fenced == fenced && mayStillBeTaken(p))) {
            fenced.complete(null);
        }
    }

    private boolean mayStillBeTaken(Prefill prefill) {
        return !contextFollows || prefill.contextUnderWay();
    }

    /** Whether a preempted prompt still owes the answer for this grant. */
    boolean anyHolds(Session session, int imm) {
        return busy.stream().anyMatch(p -> p.find(session, imm) != null);
    }

    int count() {
        return busy.size();
    }
}
