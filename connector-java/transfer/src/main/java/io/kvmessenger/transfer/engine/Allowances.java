package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.HashMap;
import java.util.Map;

/**
 * What one peer has granted this engine to write; every submitted page is checked against it.
 *
 * <p>Messenger's thread only. A check allocates nothing; allowing a window and refusing a request do.
 */
final class Allowances {
    private final RegionTable sources;
    private final Map<Integer, AllowedWindow> bySlot = new HashMap<>();

    Allowances(RegionTable sources) {
        this.sources = sources;
    }

    /** Replaces a window of an earlier generation of the slot: the target has closed that one. */
    AllowedWindow allow(int imm, WindowArea area, TrafficClass trafficClass) {
        AllowedWindow window = new AllowedWindow(this, imm & ~Imm.WEIGHT_MAX, area, trafficClass);
        AllowedWindow earlier = bySlot.put(Imm.slot(imm), window);
        if (earlier != null) {
            earlier.end();
        }
        return window;
    }

    /** Ignores a window that is not allowed here. */
    void disallow(RemoteWindow window) {
        if (window instanceof AllowedWindow allowed && bySlot.remove(Imm.slot(allowed.imm()), allowed)) {
            allowed.end();
        }
    }

    /** Why the request may not be submitted; null if it may. */
    String refusal(TransferRequest request) {
        if (request.weight() < 1 || request.weight() > TransferRequest.WEIGHT_MAX) {
            return "the write has weight " + request.weight() + ", so that its target could not count it; give it 1 to "
                    + TransferRequest.WEIGHT_MAX;
        }
        if (!(request.window() instanceof AllowedWindow window) || !window.isAllowedBy(this)) {
            return "no window " + named(request.window()) + " is allowed";
        }
        return switch (request) {
            case PagedWrites paged -> refusal(paged, window.area());
            case SingleWrite single -> refusal(single, window.area());
            case ImmOnly only -> null;
        };
    }

    private String refusal(PagedWrites paged, WindowArea area) {
        String refusal = refusal(area, paged.source(), paged.target());
        if (refusal != null) {
            return refusal;
        }
        WindowRanges ranges = ranges(area, paged.target());
        long sourceBytes = paged.source().memory().lengthBytes();
        PageList from = paged.sourcePages();
        PageList to = paged.targetPages();
        int pageBytes = paged.pageBytes();
        for (int i = 0; i < from.count(); i++) {
            if (!inside(from.offsetOf(i), pageBytes, sourceBytes)) {
                return outsideSource(from.offsetOf(i), pageBytes, sourceBytes);
            }
            if (!ranges.contains(to.offsetOf(i), pageBytes)) {
                return outsideWindow(to.offsetOf(i), pageBytes, paged.target(), paged.window());
            }
        }
        return null;
    }

    private String refusal(SingleWrite single, WindowArea area) {
        String refusal = refusal(area, single.source(), single.target());
        if (refusal != null) {
            return refusal;
        }
        long sourceBytes = single.source().memory().lengthBytes();
        if (!inside(single.sourceOffsetBytes(), single.lengthBytes(), sourceBytes)) {
            return outsideSource(single.sourceOffsetBytes(), single.lengthBytes(), sourceBytes);
        }
        if (!ranges(area, single.target()).contains(single.targetOffsetBytes(), single.lengthBytes())) {
            return outsideWindow(single.targetOffsetBytes(), single.lengthBytes(), single.target(), single.window());
        }
        return null;
    }

    private String refusal(WindowArea area, Region source, RegionDescriptor target) {
        if (area.partIndexOf(target.regionId()) < 0) {
            return "the write targets region " + target.regionId() + ", on which its window does not lie";
        }
        if (!(source instanceof RegisteredRegion region) || !region.isLiveIn(sources)) {
            return "the source is not a region registered with this engine";
        }
        return null;
    }

    private static boolean inside(long offsetBytes, long lengthBytes, long regionBytes) {
        return offsetBytes >= 0 && lengthBytes >= 0 && offsetBytes <= regionBytes - lengthBytes;
    }

    /** The ranges of a write that has passed {@link #refusal(WindowArea, Region, RegionDescriptor)}. */
    private static WindowRanges ranges(WindowArea area, RegionDescriptor target) {
        return area.parts().get(area.partIndexOf(target.regionId())).ranges();
    }

    private static String named(RemoteWindow window) {
        return "with slot " + Imm.slot(window.imm()) + " generation " + Imm.generation(window.imm());
    }

    private static String outsideSource(long offsetBytes, long lengthBytes, long regionBytes) {
        return "source offset " + offsetBytes + " with " + lengthBytes + " bytes is outside its region of "
                + regionBytes + " bytes";
    }

    private static String outsideWindow(
            long offsetBytes, long lengthBytes, RegionDescriptor target, RemoteWindow window) {
        return "target offset " + offsetBytes + " with " + lengthBytes + " bytes is outside the window " + named(window)
                + " on region " + target.regionId() + " of " + target.lengthBytes() + " bytes";
    }
}
