package io.kvmessenger.kvlayout;

/**
 * Selects, for a transfer, which of the source's replicas sends to which target rank, so that over many transfers every
 * source rank carries the same share. Both sides make the same selection, from the transfer id and the shardings alone.
 *
 * <p>Pure; safe from any thread. Target ranks that need the same heads are assigned round-robin from the selected
 * replica on: within a transfer, too, no replica sends twice before each has sent once.
 *
 * @param rotation which of the ranks with the same heads sends to the target's TP rank 0; equal rotations give equal
 *     plans
 */
public record SourceDraw(int rotation) {
    /** The first replica of each set sends to TP rank 0, the second to TP rank 1, and so on. */
    public static final SourceDraw TWINS = new SourceDraw(0);

    public SourceDraw {
        if (rotation < 0) {
            throw new IllegalArgumentException("rotation is " + rotation + ", expected at least 0");
        }
    }

    /** The selection for a transfer; the same for a transfer id in every process and version. */
    public static SourceDraw of(String transferId, KvGeometry source, KvGeometry target) {
        return new SourceDraw((int) Long.remainderUnsigned(mix(transferId), variantCount(source, target)));
    }

    /**
     * Number of distinct selections, and so of plans between two sides. A common multiple of the variants of all
     * groups, so that each group is distributed evenly.
     */
    public static int variantCount(KvGeometry source, KvGeometry target) {
        int variants = 1;
        for (int group = 0; group < source.groups().size(); group++) {
            int ofGroup = variantCount(source, target, group);
            variants = variants / commonDivisor(variants, ofGroup) * ofGroup;
        }
        return variants;
    }

    /**
     * One if the target has at least as many replicas: then every source rank takes part in every transfer anyway, with
     * its counterpart if both sides are sharded alike.
     */
    private static int variantCount(KvGeometry source, KvGeometry target, int group) {
        if (source.groups().get(group).isDivided()) {
            return 1; // each replica sends the pages that it has
        }
        int sourceReplicas = replicaCount(source, group);
        return replicaCount(target, group) >= sourceReplicas ? 1 : sourceReplicas;
    }

    private static int commonDivisor(int a, int b) {
        return b == 0 ? a : commonDivisor(b, a % b);
    }

    /**
     * Whether a rank, among those with the same heads of a group, is the one that sends to the target's rank; of divided
     * pages each is.
     */
    boolean sends(KvGeometry source, KvGeometry target, int group, RankGeometry sourceRank, RankGeometry targetRank) {
        if (source.groups().get(group).isDivided()) {
            return true;
        }
        int replicaCount = replicaCount(source, group);
        int rotationOfGroup = rotation % variantCount(source, target, group);
        return sourceRank.tpRank() % replicaCount == (rotationOfGroup + targetRank.tpRank()) % replicaCount;
    }

    private static int replicaCount(KvGeometry geometry, int group) {
        return geometry.sharding().replicaCount(geometry.groups().get(group).kvHeadCount());
    }

    /** FNV-1a over the characters, then a finaliser, so that similar ids give independent selections. */
    private static long mix(String text) {
        long hash = 0xcbf29ce484222325L;
        for (int i = 0; i < text.length(); i++) {
            hash = (hash ^ text.charAt(i)) * 0x100000001b3L;
        }
        hash = (hash ^ hash >>> 33) * 0xff51afd7ed558ccdL;
        hash = (hash ^ hash >>> 33) * 0xc4ceb9fe1a85ec53L;
        return hash ^ hash >>> 33;
    }
}
