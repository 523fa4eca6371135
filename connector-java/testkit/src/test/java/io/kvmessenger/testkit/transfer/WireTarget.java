package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A target in a process of its own, on a {@link SecondHost}, which compares every byte of each round and ends with a reason when one
 * is wrong, when more is counted than was granted, or something comes that no window is open for.
 */
final class WireTarget implements AutoCloseable {
    static final int PAGE_BYTES = 16 << 10;
    static final int PAGE_COUNT = 256;
    static final long MEMORY_BYTES = (long) PAGE_BYTES * PAGE_COUNT;

    private final Process process;
    private final BufferedReader output;
    private String[] words;

    WireTarget(SecondHost host) {
        try {
            process = new ProcessBuilder(host.there(ChildJvm.command(WireTarget.class, host.far())))
                    .redirectErrorStream(true)
                    .start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        hear();
    }

    /** Waits for the next grant, which comes when the round before was right. */
    void hear() {
        try {
            String line = output.readLine();
            if (line == null || !line.startsWith("grant ")) {
                throw new AssertionError("the target said: " + line);
            }
            words = line.split(" ", -1);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Whether the next word is there. */
    boolean hasSpoken() {
        try {
            return output.ready();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    EngineAddress address() {
        return new EngineAddress(List.of(new TransportAddress(TransferOptions.LIBFABRIC, words[1])));
    }

    byte[] key() {
        return HexFormat.of().parseHex(words[2]);
    }

    RegionDescriptor region() {
        return new RegionDescriptor(Integer.parseInt(words[3]), MEMORY_BYTES, RegionDescriptor.VERSION, true);
    }

    int imm() {
        return Integer.parseInt(words[4]);
    }

    int round() {
        return Integer.parseInt(words[5]);
    }

    void kill() {
        process.destroyForcibly();
    }

    @Override
    public void close() {
        process.destroyForcibly();
        try {
            process.waitFor(30, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** What a page has to hold in a round. */
    static void fill(MemorySegment page, int round, int index) {
        long base = (long) round << 48 | (long) index << 24;
        for (int i = 0; i < PAGE_BYTES / Long.BYTES; i++) {
            page.setAtIndex(ValueLayout.JAVA_LONG, i, (base + i) * 0x9E3779B97F4A7C15L);
        }
    }

    public static void main(String[] words) {
        TransferOptions options =
                InstalledFabric.byTcp(TransferOptions.defaults()).withHosts(words[0], "");
        Thread.ofPlatform().daemon().start(WireTarget::endWithTheParent);
        try (DrivenEngine engine = new DrivenEngine(options, "far", MEMORY_BYTES)) {
            Admission admission = engine.engine().admit("near");
            for (int round = 0; ; round++) {
                serve(engine, admission, round);
            }
        } catch (AssertionError | RuntimeException e) {
            System.out.println("wrong: " + e);
        }
    }

    /** Whose death closes the pipe. */
    private static void endWithTheParent() {
        try {
            System.in.readAllBytes();
        } catch (IOException e) {
            // As good as its end.
        }
        Runtime.getRuntime().halt(1);
    }

    private static void serve(DrivenEngine engine, Admission admission, int round) {
        engine.memory().fill((byte) 0);
        WindowArea area =
                WindowArea.of(engine.region().descriptor(), WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES));
        ImmWindow window = engine.engine().openWindow(admission, area, PAGE_COUNT, round);
        System.out.println(
                "grant " + engine.engine().address().transports().getFirst().location() + " "
                        + HexFormat.of().formatHex(admission.key()) + " "
                        + engine.region().descriptor().regionId() + " " + window.imm() + " " + round);
        long cookie = round;
        while (!engine.filled.contains(cookie)) {
            if (engine.poll() == 0) {
                engine.engine().await(20_000_000L);
            }
            require(engine.closedAdmissions.isEmpty(), "the admission has ended: " + engine.closedAdmissions);
        }
        MemorySegment expected = MemorySegment.ofArray(new long[PAGE_BYTES / Long.BYTES]);
        for (int i = 0; i < PAGE_COUNT; i++) {
            fill(expected, round, i);
            long wrong =
                    engine.memory().asSlice((long) i * PAGE_BYTES, PAGE_BYTES).mismatch(expected);
            require(wrong == -1, "page " + i + " of round " + round + " is wrong at " + wrong);
        }
        require(window.arrivedWeight() == PAGE_COUNT, "counted " + window.arrivedWeight());
        require(engine.overshot.isEmpty(), "overshot " + engine.overshot);
        require(engine.engine().counters().of(TransferCounter.STRAYS) == 0, "strays");
        window.close(true);
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
