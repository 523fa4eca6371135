package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.transfer.ImmWindow;
import java.util.BitSet;
import java.util.List;

/**
 * One grant of a source, and all that is known of it: its window, how it ends, and which of its pages have been
 * compared. A source that is granted anew gets a new one, so that nothing of an earlier grant, no count and no
 * half-made sum, can be taken for a part of the present one. State only, owned by the messenger's thread.
 */
final class SourceGrant {
    private static final long UNKNOWN = -1;

    /** Names it in frames, and its window at the transfer engine; 0 before the first grant of a source. */
    final long id;
    /** The weight that its window was opened for. */
    final long expectedWeight;
    /** The weight of all that the source sends; {@link #UNKNOWN} until it says which divided pages it has. */
    private long owedWeight;
    /** Which granted pages each of its ranks has, for each group of divided pages; empty until it says so. */
    private List<BitSet> shares = List.of();

    private final ImmWindow window;
    private final boolean divided;
    private boolean closed;
    /** The prefiller's checksums of its pages. */
    final ReportedChecksums checksums = new ReportedChecksums();
    /** Total weight of the writes in {@link #checksums}. */
    long checksummedWeight;
    /** How many entries of {@link #checksums} have been compared. */
    int comparedCount;
    /** Running sum over the pages of the entry being compared; null between two entries. */
    PageSum sum;
    /** Set in CANCELLING and DRAINING: the deadline for the confirmation, or for counting everything posted. */
    long confirmDeadlineNs;
    /** Set in DRAINING: the weight of everything posted. */
    long postedWeight;
    /** Set in DRAINING: grant again once the source is drained, unless the fetch has failed meanwhile. */
    boolean again;

    /** @param divided whether some of these pages are on other ranks, so that the window is not filled by this source */
    SourceGrant(long id, ImmWindow window, long expectedWeight, boolean divided) {
        this.id = id;
        this.window = window;
        this.expectedWeight = expectedWeight;
        this.divided = divided;
        this.owedWeight = divided ? UNKNOWN : expectedWeight;
    }

    /** Of a source that has not been granted anything. */
    static SourceGrant none() {
        return new SourceGrant(0, null, 0, false);
    }

    boolean holdsWindow() {
        return window != null && !closed;
    }

    long arrivedWeight() {
        return window == null ? 0 : window.arrivedWeight();
    }

    boolean hasAll() {
        return window != null && arrivedWeight() == owedWeight;
    }

    /** The weight of all that the source sends; negative while it is not known. */
    long owedWeight() {
        return owedWeight;
    }

    /** Whether the source can send no more than what is known of it. */
    boolean knowsOwed() {
        return owedWeight != UNKNOWN;
    }

    /** Whether its window need not report the last write, because other ranks may have some of the pages. */
    boolean isCounted() {
        return divided && knowsOwed();
    }

    List<BitSet> shares() {
        return shares;
    }

    /** The source has said which pages its ranks have. */
    void owes(long weight, List<BitSet> ofRanks) {
        owedWeight = weight;
        shares = ofRanks;
    }

    /** Closes its window; the caller knows that nothing more can land. */
    void close() {
        if (holdsWindow()) {
            closed = true;
            window.close(true);
        }
    }
}
