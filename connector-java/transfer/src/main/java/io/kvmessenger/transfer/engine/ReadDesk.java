package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.ReadKey;
import io.kvmessenger.transfer.ReadWindow;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Serves the peers' reads of this engine's memory: checks each request, and writes the pages into the peer's window.
 *
 * <p>Messenger's thread. An accepted part becomes an ordinary write to that peer, with the same guarantees: it is
 * written as a whole or not at all, or the peer is lost.
 */
final class ReadDesk {
    static final int WINDOWS_MAX = 1 << 12;

    interface Engine {
        boolean hasRoom();

        /** A write is queued for the peer. */
        void wake(OutboundPeer peer);

        /** The peer has broken a rule. */
        void lose(OutboundPeer peer, String detail);
    }

    /** A part being written. */
    private record Part(OutboundPeer reader, HostReadWindow window, ReadAsk ask) {}

    private final Engine engine;
    private final Map<Long, HostReadWindow> windows = new HashMap<>();
    private final List<Part> parts = new ArrayList<>();
    private final ArrayDeque<Integer> freeParts = new ArrayDeque<>();
    /** Peers whose requests wait for room. */
    private final Set<OutboundPeer> waiting = new LinkedHashSet<>();

    private final ArrayDeque<HostReadWindow> closed = new ArrayDeque<>();
    private long lastSerial;

    ReadDesk(Engine engine) {
        this.engine = engine;
    }

    /** Opens a window, or returns null when there are too many. */
    ReadWindow open(Peer reader, List<RegisteredRegion> regions, WindowArea area, long key, long cookie) {
        if (windows.size() + closed.size() >= WINDOWS_MAX) {
            return null;
        }
        HostReadWindow window = new HostReadWindow(reader, regions, area, new ReadKey(++lastSerial, key), cookie);
        windows.put(window.key.serial(), window);
        regions.forEach(RegisteredRegion::hold);
        return window;
    }

    /** Handles the peer's requests; returns the number of writes queued. */
    int onAsked(OutboundPeer reader) {
        int queued = 0;
        for (MemorySegment next = reader.asked().peek();
                next != null;
                next = reader.asked().peek()) {
            if (reader.isGone()) {
                reader.asked().release();
                continue;
            }
            if (!engine.hasRoom() || !reader.hasRoom(TrafficClass.NORMAL)) {
                waiting.add(reader);
                return queued;
            }
            ReadAsk ask = ReadAsk.parse(next);
            reader.asked().release();
            if (ask == null) {
                engine.lose(reader, "the peer asks for a read that is none");
            } else {
                queued += serve(reader, ask);
            }
        }
        waiting.remove(reader);
        return queued;
    }

    /** Retries requests that had no room; returns the number of writes queued. */
    int serveWaiting() {
        if (waiting.isEmpty()) {
            return 0; // the common case: allocates nothing
        }
        int queued = 0;
        for (OutboundPeer reader : List.copyOf(waiting)) {
            queued += onAsked(reader);
        }
        return queued;
    }

    private int serve(OutboundPeer reader, ReadAsk ask) {
        HostReadWindow window = windows.get(ask.from().serial());
        if (window == null || window.reader != reader || !window.key.equals(ask.from())) {
            answer(reader, ask, ReadAnswer.NO_WINDOW);
            return 0;
        }
        RegisteredRegion source = window.sourceOf(ask);
        if (source == null) {
            answer(reader, ask, ReadAnswer.OUTSIDE);
            return 0;
        }
        PagedWrites write = writeOf(ask, source);
        if (reader.lengthRefusal(write) != null) {
            answer(reader, ask, ask.hearsTooLong() ? ReadAnswer.TOO_LONG : ReadAnswer.OUTSIDE);
            return 0;
        }
        window.partsUnderWay++;
        reader.offer(write, enter(new Part(reader, window, ask)), WriteLedger.OF_READ);
        engine.wake(reader);
        return 1;
    }

    private static PagedWrites writeOf(ReadAsk ask, RegisteredRegion source) {
        return new PagedWrites(
                source,
                ask.sourcePages(),
                new RegionDescriptor(ask.targetRegionId(), Long.MAX_VALUE, RegionDescriptor.VERSION, true),
                ask.targetPages(),
                ask.pageBytes(),
                new AskedWindow(ask),
                1);
    }

    /** Where the reader counts a part: a request may wait for what is read. */
    private record AskedWindow(ReadAsk ask) implements RemoteWindow {
        @Override
        public int imm() {
            return ask.imm();
        }

        @Override
        public TrafficClass trafficClass() {
            return TrafficClass.NORMAL;
        }
    }

    private int enter(Part part) {
        if (freeParts.isEmpty()) {
            parts.add(part);
            return parts.size() - 1;
        }
        int entry = freeParts.remove();
        parts.set(entry, part);
        return entry;
    }

    private void answer(OutboundPeer reader, ReadAsk ask, int outcome) {
        if (!reader.answers().offer(new ReadAnswer(ask.imm(), ask.part(), outcome).encode())) {
            engine.lose(reader, "the peer asks for more reads at once than it may");
            return;
        }
        reader.rest().stir();
        engine.wake(reader);
    }

    /** The write of a part does not need its source any more. */
    void onPartEnded(long entry, boolean completed) {
        Part part = parts.set((int) entry, null);
        freeParts.add((int) entry);
        if (completed && !part.reader.isGone()) {
            answer(part.reader, part.ask, ReadAnswer.SENT);
        }
        part.window.partsUnderWay--;
        part.window.endIfOver();
    }

    boolean hasNews() {
        return !closed.isEmpty();
    }

    /** Reports up to {@code limit} windows that nothing reads from any more; returns how many. */
    int reportClosed(CompletionHandler handler, int limit) {
        int count = 0;
        while (count < limit && !closed.isEmpty()) {
            handler.onReadWindowClosed(closed.remove().cookie);
            count++;
        }
        return count;
    }

    private final class HostReadWindow implements ReadWindow {
        final Peer reader;
        final List<RegisteredRegion> regions;
        final WindowArea area;
        final ReadKey key;
        final long cookie;
        int partsUnderWay;

        HostReadWindow(Peer reader, List<RegisteredRegion> regions, WindowArea area, ReadKey key, long cookie) {
            this.reader = reader;
            this.regions = regions;
            this.area = area;
            this.key = key;
            this.cookie = cookie;
        }

        @Override
        public ReadKey key() {
            return key;
        }

        @Override
        public void close() {
            if (windows.remove(key.serial()) != null) {
                endIfOver();
            }
        }

        void endIfOver() {
            if (partsUnderWay == 0 && !windows.containsKey(key.serial())) {
                regions.forEach(RegisteredRegion::release);
                closed.add(this);
            }
        }

        /** The region that contains all the pages, or null when one is outside the window. */
        RegisteredRegion sourceOf(ReadAsk ask) {
            int part = area.partIndexOf(ask.sourceRegionId());
            PageList pages = ask.sourcePages();
            if (part < 0 || pages.count() > ReadAsk.pagesPerPart(ask.pageBytes())) {
                return null;
            }
            WindowRanges ranges = area.parts().get(part).ranges();
            for (int i = 0; i < pages.count(); i++) {
                if (!ranges.contains(pages.offsetOf(i), ask.pageBytes())) {
                    return null;
                }
            }
            return regions.get(part);
        }
    }
}
