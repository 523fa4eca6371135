package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/**
 * An engine in a process of its own, to be stopped and killed: a target that never polls, or a writer that never ends.
 *
 * <p>The target prints one line with its address: location, key, region id, length, imm.
 */
final class PeerProcess implements AutoCloseable {
    private final Process process;
    private final List<String> words;

    private PeerProcess(String... arguments) throws IOException {
        process = new ProcessBuilder(ChildJvm.command(PeerProcess.class, arguments))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        var output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        String line = output.readLine();
        if (line == null) {
            throw new AssertionError("the peer process said nothing");
        }
        words = List.of(line.split(" ", -1));
    }

    /** Starts a target with a window over all its memory. */
    static PeerProcess target(String transport, long memoryBytes) throws IOException {
        return new PeerProcess("target", transport, Long.toString(memoryBytes));
    }

    /** Starts a writer that fills the window with whole pages until it is killed. */
    static PeerProcess writer(String transport, DrivenEngine target, Admission admission, int imm, int pageBytes)
            throws IOException {
        RegionDescriptor region = target.region().descriptor();
        return new PeerProcess(
                "writer",
                transport,
                target.engine().address().transports().getFirst().location(),
                HexFormat.of().formatHex(admission.key()),
                Integer.toString(region.regionId()),
                Long.toString(region.lengthBytes()),
                Integer.toString(imm),
                Integer.toString(pageBytes));
    }

    EngineAddress address(String transport) {
        return new EngineAddress(List.of(new TransportAddress(transport, word(0))));
    }

    byte[] key() {
        return HexFormat.of().parseHex(word(1));
    }

    RegionDescriptor region() {
        return new RegionDescriptor(Integer.parseInt(word(2)), Long.parseLong(word(3)), RegionDescriptor.VERSION, true);
    }

    int imm() {
        return Integer.parseInt(word(4));
    }

    private String word(int index) {
        return words.get(index);
    }

    /** Sends a signal, by name. */
    void signal(String name) throws IOException, InterruptedException {
        Process kill = new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).start();
        if (kill.waitFor() != 0) {
            throw new AssertionError("kill -" + name + " failed");
        }
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

    public static void main(String[] words) throws IOException {
        if (words[0].equals("target")) {
            runTarget(words[1], Long.parseLong(words[2]));
        } else {
            runWriter(words);
        }
    }

    private static void runTarget(String transport, long memoryBytes) throws IOException {
        try (DrivenEngine engine =
                new DrivenEngine(TransferOptions.defaults().withTransports(transport), "child", memoryBytes)) {
            Admission admission = engine.engine().admit("parent");
            WindowRanges all = WindowRanges.ofEqual(new long[] {0}, memoryBytes);
            int imm = engine.openWindow(admission, all, Long.MAX_VALUE, 1).imm();
            System.out.println(engine.engine().address().transports().getFirst().location() + " "
                    + HexFormat.of().formatHex(admission.key()) + " "
                    + engine.region().descriptor().regionId() + " " + memoryBytes + " " + imm);
            // Its parent's death closes the pipe, and with it this process.
            System.in.readAllBytes();
        }
    }

    private static void runWriter(String[] words) {
        String transport = words[1];
        int pageBytes = Integer.parseInt(words[7]);
        long memoryBytes = Long.parseLong(words[5]);
        try (DrivenEngine engine =
                new DrivenEngine(TransferOptions.defaults().withTransports(transport), "child", memoryBytes)) {
            Peer peer = engine.engine()
                    .connect(
                            new EngineAddress(List.of(new TransportAddress(transport, words[2]))),
                            HexFormat.of().parseHex(words[3]),
                            "parent");
            RegionDescriptor target =
                    new RegionDescriptor(Integer.parseInt(words[4]), memoryBytes, RegionDescriptor.VERSION, true);
            int imm = Integer.parseInt(words[6]);
            WindowArea area = WindowArea.of(target, WindowRanges.ofEqual(new long[] {0}, memoryBytes));
            RemoteWindow window = engine.engine().allow(peer, imm, area);
            // Before the parent has accepted, which it does only after reading this.
            System.out.println("connecting");
            engine.await("the parent", () -> engine.ready.contains(peer));
            int count = (int) (memoryBytes / pageBytes);
            PageList pages = new PageList(IntStream.range(0, count).toArray(), 0, count, pageBytes, 0);
            for (long cookie = 0; engine.lost.isEmpty(); cookie++) {
                engine.submit(
                        peer, new PagedWrites(engine.region(), pages, target, pages, pageBytes, window, 1), cookie);
            }
        }
    }
}
