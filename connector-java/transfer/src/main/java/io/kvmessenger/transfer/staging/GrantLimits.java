package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.TransferOptions;

/**
 * The page-locked host memory of each worker that peers write to themselves, for transports whose NICs do not reach a
 * device. A value.
 *
 * @param slabsPerPeer number of slabs that one peer has for itself; 0 for none
 * @param slabBytes length of the pages in a slab
 * @param peerCount number of peers that have slabs at a time
 */
public record GrantLimits(int slabsPerPeer, long slabBytes, int peerCount) {
    /** No peer has slabs. */
    public static final GrantLimits NONE = new GrantLimits(0, 0, 0);

    private static final int KIB = 1 << 10;

    /** As the options say. */
    public static GrantLimits of(TransferOptions options) {
        int slabs = options.get(TransferOptions.LANDING_SLABS);
        return slabs == 0
                ? NONE
                : new GrantLimits(
                        slabs,
                        (long) options.get(TransferOptions.LANDING_SLAB_KIB) * KIB,
                        options.get(TransferOptions.LANDING_PEERS));
    }
}
