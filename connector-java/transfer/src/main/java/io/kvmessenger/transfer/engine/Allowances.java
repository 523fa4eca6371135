package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;

/**
 * What one peer has granted this engine to write, by slot; every submitted page is checked against it.
 *
 * <p>Messenger's thread only. Only what is refused costs an object.
 */
final class Allowances {
    private static final int BLOCK_SLOTS = 64;

    private record Allowance(int imm, WindowArea area) {}

    private final RegionTable sources;
    /** By slot, in blocks that exist while something in them is allowed. */
    private final Allowance[][] blocks = new Allowance[Imm.SLOT_COUNT_MAX / BLOCK_SLOTS][];

    private final int[] counts = new int[Imm.SLOT_COUNT_MAX / BLOCK_SLOTS];

    Allowances(RegionTable sources) {
        this.sources = sources;
    }

    void allow(int imm, WindowArea area) {
        int window = imm & ~Imm.WEIGHT_MAX;
        int block = Imm.slot(window) / BLOCK_SLOTS;
        if (blocks[block] == null) {
            blocks[block] = new Allowance[BLOCK_SLOTS];
        }
        int entry = Imm.slot(window) % BLOCK_SLOTS;
        counts[block] += blocks[block][entry] == null ? 1 : 0;
        blocks[block][entry] = new Allowance(window, area);
    }

    void disallow(int imm) {
        if (find(imm) == null) {
            return;
        }
        int block = Imm.slot(imm) / BLOCK_SLOTS;
        blocks[block][Imm.slot(imm) % BLOCK_SLOTS] = null;
        if (--counts[block] == 0) {
            blocks[block] = null;
        }
    }

    /** Why the request may not be submitted, or null. */
    String refusal(TransferRequest request) {
        if (Imm.weight(immOf(request)) == 0) {
            return "the write has no weight, so that its target could not count it; give it at least 1";
        }
        return switch (request) {
            case PagedWrites paged -> refusal(paged);
            case SingleWrite single -> refusal(single);
            case ImmOnly only -> find(only.imm()) == null ? notAllowed(only.imm()) : null;
        };
    }

    private static int immOf(TransferRequest request) {
        return switch (request) {
            case PagedWrites paged -> paged.imm();
            case SingleWrite single -> single.imm();
            case ImmOnly only -> only.imm();
        };
    }

    private Allowance find(int imm) {
        Allowance[] block = blocks[Imm.slot(imm) / BLOCK_SLOTS];
        Allowance allowance = block == null ? null : block[Imm.slot(imm) % BLOCK_SLOTS];
        return allowance != null && allowance.imm == (imm & ~Imm.WEIGHT_MAX) ? allowance : null;
    }

    /** Where a write that has passed {@link #refusal(int, Region, RegionDescriptor)} may land. */
    private WindowRanges ranges(int imm, RegionDescriptor target) {
        WindowArea area = find(imm).area;
        return area.parts().get(area.partIndexOf(target.regionId())).ranges();
    }

    private String refusal(PagedWrites paged) {
        String refusal = refusal(paged.imm(), paged.source(), paged.target());
        if (refusal != null) {
            return refusal;
        }
        WindowRanges ranges = ranges(paged.imm(), paged.target());
        long sourceBytes = paged.source().memory().byteSize();
        PageList from = paged.sourcePages();
        PageList to = paged.targetPages();
        int pageBytes = paged.pageBytes();
        for (int i = 0; i < from.count(); i++) {
            if (!inside(from.offsetOf(i), pageBytes, sourceBytes)) {
                return outsideSource(from.offsetOf(i), pageBytes, sourceBytes);
            }
            if (!ranges.contains(to.offsetOf(i), pageBytes)) {
                return outsideWindow(to.offsetOf(i), pageBytes, paged.target(), paged.imm());
            }
        }
        return null;
    }

    private String refusal(SingleWrite single) {
        String refusal = refusal(single.imm(), single.source(), single.target());
        if (refusal != null) {
            return refusal;
        }
        long sourceBytes = single.source().memory().byteSize();
        if (!inside(single.sourceOffsetBytes(), single.lengthBytes(), sourceBytes)) {
            return outsideSource(single.sourceOffsetBytes(), single.lengthBytes(), sourceBytes);
        }
        if (!ranges(single.imm(), single.target()).contains(single.targetOffsetBytes(), single.lengthBytes())) {
            return outsideWindow(single.targetOffsetBytes(), single.lengthBytes(), single.target(), single.imm());
        }
        return null;
    }

    private String refusal(int imm, Region source, RegionDescriptor target) {
        Allowance allowance = find(imm);
        if (allowance == null) {
            return notAllowed(imm);
        }
        if (allowance.area.partIndexOf(target.regionId()) < 0) {
            return "the write targets region " + target.regionId() + ", on which its window does not lie";
        }
        if (!(source instanceof HostRegion region) || !region.isLiveIn(sources)) {
            return "the source is not a region registered with this engine";
        }
        return null;
    }

    private static boolean inside(long offsetBytes, long lengthBytes, long regionBytes) {
        return offsetBytes >= 0 && lengthBytes >= 0 && offsetBytes <= regionBytes - lengthBytes;
    }

    private static String notAllowed(int imm) {
        return "no window with slot " + Imm.slot(imm) + " generation " + Imm.generation(imm) + " was allowed";
    }

    private static String outsideSource(long offsetBytes, long lengthBytes, long regionBytes) {
        return "source offset " + offsetBytes + " with " + lengthBytes + " bytes is outside its region of "
                + regionBytes + " bytes";
    }

    private static String outsideWindow(long offsetBytes, long lengthBytes, RegionDescriptor target, int imm) {
        return "target offset " + offsetBytes + " with " + lengthBytes + " bytes is outside the window with slot "
                + Imm.slot(imm) + " generation " + Imm.generation(imm) + " on region " + target.regionId() + " of "
                + target.lengthBytes() + " bytes";
    }
}
