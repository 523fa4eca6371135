package io.kvmessenger.testkit.sim.check;

import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Objects;
import java.util.Set;

/**
 * What one server's landing and ranks must be, as its frames, its engine's loads and the writes into its memory say. It
 * relies on no state of the messenger. Package-private: {@link WeightsChecker} owns it.
 */
final class ServedWeights {
    private final String process;
    private final MemorySegment landing;
    /** What each rank serves; null = what it started with. */
    private final SentUpdate[] served;
    /** Ranks whose weights are of neither version. */
    private final boolean[] mixed;

    private final Set<Long> landed = new HashSet<>();
    private final Set<Long> loaded = new HashSet<>();
    private final Set<Long> refused = new HashSet<>();
    private final Set<Long> heardRefused = new HashSet<>();
    private final Set<Long> grounded = new HashSet<>();
    /** The last update that was given the landing; null before the first. */
    private SentUpdate granted;
    /** What the messenger has let the engine load, until the landing is given away. */
    private SentUpdate permitted;

    private boolean loading;
    /** What all ranks serve; 0 = what they started with. */
    private long servedVersion;
    /** Updates that were announced, those of them that this side has answered, and ends that were counted. */
    private int announced;

    private int taken;

    private int ended;

    ServedWeights(String process, int rankCount, MemorySegment landing) {
        this.process = process;
        this.landing = landing;
        served = new SentUpdate[rankCount];
        mixed = new boolean[rankCount];
    }

    private static void demand(boolean holds, String sentence) {
        if (!holds) {
            throw new Violation("Weights", sentence);
        }
    }

    void onGround(SentUpdate update, String trainer) {
        demand(update.trainer().equals(trainer), process + " gave its landing for " + update + " to " + trainer);
        demand(!loading, process + " gave its landing to " + update + " while ranks load " + granted);
        demand(update.version() > servedVersion, process + " took " + update + ", and serves version " + servedVersion);
        demand(!refused.contains(update.id()), process + " gave its landing to " + update + ", which it had refused");
        granted = update;
        permitted = null;
        grounded.add(update.id());
        taken++;
    }

    /** Bytes of this update's writes are in the landing now. */
    void onBytes(SentUpdate update) {
        demand(
                Objects.equals(update, granted) && !landed.contains(update.id()) && !loading,
                "bytes of " + update + " landed at " + process + ", whose landing is " + granted + "'s"
                        + (granted != null && landed.contains(granted.id()) ? ", of which all has landed" : ""));
    }

    void onLanded(SentUpdate update) {
        demand(
                Objects.equals(update, granted),
                process + " says that " + update + " has landed, and its landing is " + granted);
        long wrongAt = landing.mismatch(MemorySegment.ofArray(update.content()));
        demand(wrongAt < 0, process + " says that " + update + " has landed, and byte " + wrongAt + " is wrong");
        landed.add(update.id());
    }

    void onPermitted(SentUpdate update) {
        demand(
                Objects.equals(update, granted) && landed.contains(update.id()),
                process + " lets its engine load " + update + ", which is not what has landed");
        permitted = update;
    }

    void onRankBegins(int rank, SentUpdate update) {
        demand(
                Objects.equals(update, permitted) && Objects.equals(update, granted),
                "rank " + rank + " of " + process + " loads " + update + ", which it may not");
        demand(!refused.contains(update.id()), process + " loads " + update + ", which it has refused");
        loading = true;
        mixed[rank] = true;
    }

    void onRankLoaded(int rank, SentUpdate update, byte[] bytes) {
        int wrongAt = Arrays.mismatch(bytes, update.content());
        demand(wrongAt < 0, "rank " + rank + " of " + process + " loaded " + update + " with a wrong byte " + wrongAt);
        mixed[rank] = false;
        served[rank] = update;
    }

    /** All ranks have. */
    void onLoaded(SentUpdate update) {
        demand(
                update.version() > servedVersion,
                process + " loaded " + update + " and had served version " + servedVersion);
        demand(
                !heardRefused.contains(update.id()),
                process + " loaded " + update + ", which its trainer heard refused");
        servedVersion = update.version();
        loaded.add(update.id());
    }

    /** The trainer has heard that this server serves what it served before. */
    void onHeardRefused(SentUpdate update) {
        demand(
                !loaded.contains(update.id()),
                "the trainer of " + update + " heard it refused, and " + process + " serves it");
        heardRefused.add(update.id());
    }

    /** The engine goes on serving. */
    void onLoadEnded() {
        loading = false;
        for (int rank = 0; rank < served.length; rank++) {
            demand(!mixed[rank], process + " serves, and rank " + rank + " has loaded a part of " + granted);
            demand(
                    Objects.equals(served[rank], served[0]),
                    process + " serves " + served[0] + " at its first rank and " + served[rank] + " at rank " + rank);
        }
    }

    void onRefused(SentUpdate update) {
        demand(!loaded.contains(update.id()), process + " refused " + update + " and serves it");
        demand(
                !(loading && Objects.equals(update, granted)),
                process + " refused " + update + " while its ranks load it");
        refused.add(update.id());
        taken += grounded.contains(update.id()) ? 0 : 1;
    }

    void onAnnounce() {
        announced++;
    }

    void onEnd() {
        ended++;
        demand(ended <= announced, process + " was announced " + announced + " updates and counted " + ended + " ends");
    }

    boolean hasLanded(SentUpdate update) {
        return landed.contains(update.id());
    }

    boolean hasLoaded(SentUpdate update) {
        return loaded.contains(update.id());
    }

    /** What has landed and has not ended; null if nothing has. */
    SentUpdate unloaded() {
        boolean waits = granted != null
                && landed.contains(granted.id())
                && !loaded.contains(granted.id())
                && !refused.contains(granted.id());
        return waits ? granted : null;
    }

    /** Whether the landing is still this update's. */
    boolean keeps(SentUpdate update) {
        return Objects.equals(update, granted) && !refused.contains(update.id());
    }

    long servesId() {
        return served[0] == null ? 0 : served[0].id();
    }

    /** @param keepsUnloaded whether a version has landed that has not ended */
    void atRest(boolean keepsUnloaded) {
        onLoadEnded();
        demand(
                ended + (keepsUnloaded ? 1 : 0) >= taken, // an answer may have found its link closed
                process + " has taken or refused " + taken + " updates and counted " + ended + " ends"
                        + (keepsUnloaded ? ", of which one waits to be loaded" : ""));
    }
}
