package io.kvmessenger.transfer;

import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.util.List;

/**
 * A request to a {@link PeerGroup}: one write for each of its members, and one completion for all. Immutable and
 * reusable; submitting it allocates nothing.
 */
public sealed interface GroupRequest {
    /** Number of parts, one for each member of the group. */
    int partCount();

    TransferRequest part(int member);

    /** Slices of one region, each to a different member. */
    final class Scatter implements GroupRequest {
        /**
         * The part of one member. A slice of length zero carries only its immediate, so that a member's expectation
         * does not depend on whether there are bytes for it.
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

        /** One slice for each member, in the order of the group. */
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
     * An immediate to each member, without bytes. Each member counts it like the immediate of a write, so a window with
     * one weight per sender fills when all have arrived. It orders nothing: like every immediate it may overtake
     * earlier writes.
     */
    final class Barrier implements GroupRequest {
        private final TransferRequest[] parts;

        /**
         * @param windows one for each member
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
