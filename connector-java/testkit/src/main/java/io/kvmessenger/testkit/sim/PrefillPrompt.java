package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.ArrayList;
import java.util.List;

/** A request of a {@link SimulatedPrefillEngine}, from its queue to the release of its pages. State only. */
final class PrefillPrompt {
    /** Its progress. */
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
    /** Names its text. */
    final String name;

    final int tokenCount;
    int[] pages = new int[0];
    /** By position, for full pages: the cache entry that others may share, or null. */
    final List<PrefixCache.Entry> entries = new ArrayList<>();
    /** The first pages, which another prompt owned when this one began. */
    List<PrefixCache.Entry> hits = List.of();
    /** The last pass that computes a chunk of it. */
    ForwardPass lastPass;
    /** Where its next chunk begins. */
    int computedTokens;

    /** Where its last chunk ends. */
    int endToken;
    /** End of the chunks that the messenger knows, or will know before it is told about another chunk. */
    int reportedTokens;

    int reportedPages;
    /** Slot of its context rows once it is computed. */
    int contextSlot = ContextSlots.NO_SLOT;

    State state = State.QUEUED;
    /** The scheduler ignores it until then. */
    long queuedUntilNs;
    /** The messenger knows it, and must be told about its end. */
    boolean reported;
    /** A decoder has granted it, if the engine waits for that. */
    boolean granted;
    /** It will not be sent; reported while it was being fenced. */
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

    /** Whether the pass's result for it is needed, and its pages are held. */
    boolean computes(ForwardPass pass) {
        return pass.parts.stream()
                        .anyMatch(part ->
                                part.request().equals(request) && !part.share().givenUp())
                && (state == State.IN_STEP || state == State.BETWEEN_STEPS || state == State.COMPUTED);
    }

    /** Restarts it: its pages belong to another prompt. */
    void startAnew() {
        pages = new int[0];
        entries.clear();
        computedTokens = 0;
        reportedTokens = 0;
        reportedPages = 0;
    }
}
