package io.kvmessenger.transfer;

import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.util.List;

/**
 * What can be asked of a {@link PeerGroup}: one write for each of its members, and one completion for all. Immutable, so that
 * one may be submitted again and again; a submit allocates nothing.
 */
public sealed interface GroupRequest {
    /** As many as the group has members. */
    int partCount();

    /** What the member with this index gets. */
    TransferRequest part(int member);

    /** Slices of one region, each to a member of its own. */
    final class Scatter implements GroupRequest {
        /**
         * What one member gets. A slice of length zero is only its immediate: what a member waits for does not depend on how
         * many bytes there are for it.
         *
         * @param target a region of the member
         * @param window of the member
         * @param weight 1 to {@link TransferRequest#WEIGHT_MAX}
         */
        public record Slice(
                long sourceOffsetBytes,
                long lengthBytes,
                RegionDescriptor target,
                long targetOffsetBytes,
                RemoteWindow window,
                int weight) {}

        private final TransferRequest[] parts;

        /** A slice to each member, in the order of the group. */
        public Scatter(Region source, List<Slice> slices) {
            parts = slices.stream().map(slice -> partOf(source, slice)).toArray(TransferRequest[]::new);
        }

        private static TransferRequest partOf(Region source, Slice slice) {
            return slice.lengthBytes() == 0
                    ? new ImmOnly(slice.window(), slice.weight())
                    : new SingleWrite(
                            source,
                            slice.sourceOffsetBytes(),
                            slice.target(),
                            slice.targetOffsetBytes(),
                            slice.lengthBytes(),
                            slice.window(),
                            slice.weight());
        }

        @Override
        public int partCount() {
            return parts.length;
        }

        @Override
        public TransferRequest part(int member) {
            return parts[member];
        }
    }

    /**
     * An immediate to each member, and no byte. Each member counts it as that of any write, so that a window of as many members
     * fills when all have come. It orders nothing: like every immediate it may overtake writes that were submitted before it.
     */
    final class Barrier implements GroupRequest {
        private final TransferRequest[] parts;

        /**
         * @param windows one of each member
         * @param weight 1 to {@link TransferRequest#WEIGHT_MAX}
         */
        public Barrier(List<RemoteWindow> windows, int weight) {
            parts = windows.stream().map(window -> new ImmOnly(window, weight)).toArray(TransferRequest[]::new);
        }

        @Override
        public int partCount() {
            return parts.length;
        }

        @Override
        public TransferRequest part(int member) {
            return parts[member];
        }
    }
}
