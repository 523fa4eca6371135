package io.kvmessenger.messenger.kv;

import io.kvmessenger.kvlayout.HeadRange;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import java.util.BitSet;

/**
 * A set of ranks of one engine, such as the ranks that a messenger serves, those that need something of this one, or
 * those that have answered a transfer.
 *
 * <p>State only, owned by the messenger's thread.
 */
public final class EngineRanks {
    private final Sharding sharding;
    private final BitSet ranks = new BitSet();

    private EngineRanks(Sharding sharding) {
        this.sharding = sharding;
    }

    /** The ranks that one messenger serves. */
    public static EngineRanks of(KvGeometry geometry) {
        EngineRanks served = new EngineRanks(geometry.sharding());
        for (RankGeometry rank : geometry.ranks()) {
            served.ranks.set(rank.ppRank() * geometry.sharding().tpSize() + rank.tpRank());
        }
        return served;
    }

    /** The target engine's ranks, listed or not, that need heads which the source lists. */
    public static EngineRanks needing(KvGeometry source, KvGeometry target) {
        Sharding sharding = target.sharding();
        EngineRanks needing = new EngineRanks(sharding);
        for (int tpRank = 0; tpRank < sharding.tpSize(); tpRank++) {
            if (needs(source, target, tpRank)) {
                for (int ppRank = 0; ppRank < sharding.ppSize(); ppRank++) {
                    needing.ranks.set(ppRank * sharding.tpSize() + tpRank);
                }
            }
        }
        return needing;
    }

    /** Whether a TP rank of the target needs heads of any group that the source lists. */
    private static boolean needs(KvGeometry source, KvGeometry target, int tpRank) {
        for (int group = 0; group < target.groups().size(); group++) {
            HeadRange heads =
                    target.sharding().headsOf(tpRank, target.groups().get(group).kvHeadCount());
            for (RankGeometry rank : source.ranks()) {
                if (source.headsOf(rank, group).overlaps(heads)) {
                    return true;
                }
            }
        }
        return false;
    }

    public static EngineRanks copyOf(EngineRanks other) {
        EngineRanks copy = new EngineRanks(other.sharding);
        copy.ranks.or(other.ranks);
        return copy;
    }

    /** Whether both sets can belong to one engine. */
    public boolean fits(EngineRanks other) {
        return sharding.equals(other.sharding);
    }

    public boolean intersects(EngineRanks other) {
        return ranks.intersects(other.ranks);
    }

    public void add(EngineRanks other) {
        ranks.or(other.ranks);
    }

    public void remove(EngineRanks other) {
        ranks.andNot(other.ranks);
    }

    public boolean isEmpty() {
        return ranks.isEmpty();
    }

    public boolean containsAll(EngineRanks other) {
        BitSet missing = (BitSet) other.ranks.clone();
        missing.andNot(ranks);
        return missing.isEmpty();
    }

    /** Whether the set contains all ranks of the engine. */
    public boolean complete() {
        return ranks.cardinality() == sharding.tpSize() * sharding.ppSize();
    }

    @Override
    public String toString() {
        return ranks.cardinality() + " of " + sharding.tpSize() * sharding.ppSize() + " ranks";
    }
}
