package io.kvmessenger.transfer;

import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/**
 * Where the writes of one window may land: ranges of one region, or of several (one for each memory of each rank).
 *
 * <p>Immutable; safe from any thread. Built once per grant; checked for every write without allocating.
 */
public final class WindowArea {
    private final List<Part> parts;
    private final int[] regionIds;

    /** The ranges on one region; they lie inside it. */
    public record Part(RegionDescriptor region, WindowRanges ranges) {
        public Part {
            if (!region.contains(0, ranges.endBytes())) {
                throw new IllegalArgumentException("ranges end at " + ranges.endBytes() + ", region "
                        + region.regionId() + " has " + region.lengthBytes() + " bytes");
            }
        }
    }

    private WindowArea(List<Part> parts) {
        this.parts = parts;
        this.regionIds =
                parts.stream().mapToInt(part -> part.region().regionId()).toArray();
    }

    public static WindowArea of(RegionDescriptor region, WindowRanges ranges) {
        return of(List.of(new Part(region, ranges)));
    }

    /** @throws IllegalArgumentException when two parts are on the same region */
    public static WindowArea of(List<Part> parts) {
        WindowArea area = new WindowArea(parts.stream()
                .sorted(Comparator.comparingInt(part -> part.region().regionId()))
                .toList());
        for (int i = 1; i < area.regionIds.length; i++) {
            if (area.regionIds[i] == area.regionIds[i - 1]) {
                throw new IllegalArgumentException("two parts lie on region " + area.regionIds[i]);
            }
        }
        return area;
    }

    /** Sorted by region id. */
    public List<Part> parts() {
        return parts;
    }

    /** Index in {@link #parts} of the part on that region; negative when there is none. */
    public int partIndexOf(int regionId) {
        return regionIds.length == 1 && regionIds[0] == regionId ? 0 : Arrays.binarySearch(regionIds, regionId);
    }
}
