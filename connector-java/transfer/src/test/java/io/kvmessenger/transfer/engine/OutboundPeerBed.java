package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import io.kvmessenger.transfer.staging.Staging;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;

/** A peer with two domains, whose paths take what the test lets them take. One thread. */
abstract class OutboundPeerBed {
    static final int PAGE_BYTES = 1 << 20;
    static final int PAGES_PER_CYCLE = (int) (OutboundPeer.TURN_BYTES / PAGE_BYTES);
    static final int REQUESTS_MAX = 8;
    static final long SILENCE_LIMIT_NS = 1_000_000;
    static final long REPAIR_LIMIT_NS = 100;

    record Registered(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    /** Takes one page a post. */
    static final class FakePath implements Endpoint {
        final List<Integer> pages = new ArrayList<>();
        final List<Long> postIds = new ArrayList<>();
        int room = Integer.MAX_VALUE;
        int givenUp;
        long acknowledgedBytes;
        boolean owesDelivery;

        @Override
        public int post(WriteBatch batch, long postId) {
            if (pages.size() >= room) {
                return 0;
            }
            batch.limit(1, Long.MAX_VALUE, Long.MAX_VALUE);
            pages.add(batch.firstUnit());
            postIds.add(postId);
            return 1;
        }

        @Override
        public void giveUp() {
            givenUp++;
        }

        @Override
        public long acknowledgedBytes() {
            return acknowledgedBytes;
        }

        @Override
        public boolean mayOweDelivery() {
            return owesDelivery;
        }
    }

    final Arena arena = Arena.ofConfined();
    final Registered memory = new Registered(
            new RegionDescriptor(1, PAGE_BYTES, RegionDescriptor.VERSION, false),
            Memory.host(arena.allocate(PAGE_BYTES)));
    final CompletionRing completions = new CompletionRing(64, () -> {});
    final List<Long> completed = new ArrayList<>();
    final FakeDomain preferred = new FakeDomain("preferred", REPAIR_LIMIT_NS);
    final FakeDomain other = new FakeDomain("other", 0);
    final FakeLinks links = new FakeLinks();
    PathEvents events;

    {
        preferred.silenceLimitNs = SILENCE_LIMIT_NS;
    }

    final OutboundPeer peer = new OutboundPeer(
            1,
            "peer",
            new OutboundPeer.Target(
                    new EngineAddress(List.of(other.at("there"), preferred.at("there"))),
                    new byte[Admission.KEY_LENGTH_BYTES],
                    links,
                    List.of(preferred, other),
                    new Staging(DeviceAccess.NONE, StagingLimits.STANDARD),
                    LinkSharing.ofEngine().loads()),
            REQUESTS_MAX,
            new Allowances(new RegionTable(new FfmLibC())),
            completions,
            new Figures(),
            () -> 0);

    @AfterEach
    void close() {
        arena.close();
    }

    FakePath path() {
        FakePath path = new FakePath();
        events.onPathOpened(path);
        return path;
    }

    void open() {
        preferred.ended = links.ended;
        peer.connect(0);
        peer.doWork(0);
        events = preferred.events;
        events.onReady();
    }

    void submit(int pageCount, long cookie) {
        PageList pages = new PageList(new int[pageCount], 0, pageCount, PAGE_BYTES, 0);
        peer.offer(
                new PagedWrites(memory, pages, memory.descriptor(), pages, PAGE_BYTES, () -> Imm.of(1, 0), 1),
                cookie,
                WriteLedger.OF_USER);
    }

    List<Long> completed() {
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    if (kind == CompletionRing.WRITE_COMPLETED) {
                        completed.add(cookie);
                    }
                },
                64);
        return completed;
    }

    /** The preferred domain has had its first path. */
    FakePath openPreferred() {
        open();
        return path();
    }

    FakePath pathOf(FakeDomain domain) {
        FakePath path = new FakePath();
        domain.events.onPathOpened(path);
        return path;
    }

    List<String> losses() {
        List<String> losses = new ArrayList<>();
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    if (kind == CompletionRing.PEER_LOST) {
                        losses.add(((OutboundPeer.Loss) subject).fault() + " " + detail);
                    }
                },
                64);
        return losses;
    }
}
