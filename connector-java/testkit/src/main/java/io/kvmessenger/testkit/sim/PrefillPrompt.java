package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.ArrayList;
import java.util.List;

/** A request of a {@link SimulatedPrefillEngine}, from its queue to the release of its pages. State only. */
final class PrefillPrompt {
    /** How far it is. */
    enum State {
        QUEUED,
        BETWEEN_STEPS,
        IN_STEP,
        COMPUTED,
        FENCING,
        ENDED
    }

    final String request;
    final TransferKey transfer;
    /** What it says. */
    final String name;

    final int tokenCount;
    int[] pages = new int[0];
    /** By position, as far as pages are full: what others may share, or null. */
    final List<PrefixCache.Entry> entries = new ArrayList<>();
    /** The first pages, which another prompt had when this one began. */
    List<PrefixCache.Entry> hits = List.of();
    /** The last pass that computes a chunk of it. */
    ForwardPass lastPass;
    /** Where the next pass begins to compute it. */
    int computedTokens;

    /** Where the last one ends. */
    int endToken;
    /** The messenger has been told that far, or will be before it hears of another chunk. */
    int toldTokens;

    int toldPages;
    /** Where its context rows are, once it is computed. */
    int contextSlot = ContextSlots.NO_SLOT;

    State state = State.QUEUED;
    /** The scheduler does not look at it before. */
    long queuedUntilNs;
    /** The messenger knows of it, and must be told of its end. */
    boolean told;
    /** A decoder has granted it, where the engine waits for that. */
    boolean granted;
    /** It will not be sent, and was being fenced when that was told. */
    boolean stopped;

    PrefillPrompt(TransferKey transfer, int tokenCount, long number) {
        this.transfer = transfer;
        this.name = PromptName.of(transfer);
        this.request = name + "/p" + number;
        this.tokenCount = tokenCount;
    }

    static String nameOf(String request) {
        return request.substring(0, request.lastIndexOf("/p"));
    }

    /** Whether what a pass was to compute of it is wanted, and its pages are held. */
    boolean computes(ForwardPass pass) {
        return pass.parts.stream()
                        .anyMatch(part ->
                                part.request().equals(request) && !part.share().givenUp())
                && (state == State.IN_STEP || state == State.BETWEEN_STEPS || state == State.COMPUTED);
    }

    /** Its pages are another's. */
    void startAnew() {
        pages = new int[0];
        entries.clear();
        computedTokens = 0;
        toldTokens = 0;
        toldPages = 0;
    }
}
