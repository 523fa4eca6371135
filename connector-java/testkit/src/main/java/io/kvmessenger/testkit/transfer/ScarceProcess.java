package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.engine.TransferEngines;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Listener;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.spi.Figures;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;

/**
 * A process in which the operating system refuses descriptors or files, according to its first argument, to test its
 * engines' behaviour. An exception ends it if they behave otherwise. One thread in addition to those of its engines.
 */
final class ScarceProcess {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    static final String CONNECTING = "connecting";
    static final String ACCEPTING = "accepting";
    static final String OPENING = "opening";
    static final String FALLING_BACK = "fallingBack";

    /** Small: if file sizes are limited, it has to be below the limit. */
    private static final long MEMORY_BYTES = 4096;
    /** More than two connecting engines need, in whatever order they ask. */
    private static final int ENOUGH = 24;

    /** How long the peer waits when an accept is refused. */
    private static final long CONNECT_LIMIT_NS = 1_000_000_000L;

    private final Deque<Integer> ballast = new ArrayDeque<>();
    private final TransferOptions options;

    private ScarceProcess(TransferOptions options) {
        this.options = options;
    }

    public static void main(String[] words) throws Exception {
        TransferOptions options = TransferOptions.defaults()
                .withTransports(words[1].split(",", -1))
                .with(TransferOptions.THREADING, ThreadingMode.valueOf(words[2]));
        loadAllClasses();
        ScarceProcess process = new ScarceProcess(
                words[0].equals(CONNECTING)
                        ? options.with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS)
                        : options);
        switch (words[0]) {
            case CONNECTING -> process.connecting();
            case ACCEPTING -> process.accepting();
            case OPENING -> process.opening();
            case FALLING_BACK -> process.fallingBack();
            default -> throw new IllegalArgumentException("what is " + words[0] + "?");
        }
        System.out.println("done");
    }

    /** Loading a class from a folder on demand would need a descriptor. */
    private static void loadAllClasses() throws IOException, ClassNotFoundException {
        for (String entry : System.getProperty("java.class.path").split(File.pathSeparator, -1)) {
            Path folder = Path.of(entry);
            if (Files.isDirectory(folder)) {
                for (String name : classesIn(folder)) {
                    Class.forName(name, false, ScarceProcess.class.getClassLoader());
                }
            }
        }
    }

    private static List<String> classesIn(Path folder) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            return files.map(file -> folder.relativize(file).toString())
                    .filter(file -> file.endsWith(".class"))
                    .map(file ->
                            file.substring(0, file.length() - ".class".length()).replace('/', '.'))
                    .filter(name -> name.contains(".transfer.") || name.contains(".foreign."))
                    .toList();
        }
    }

    /** Whichever descriptor is the first to be refused, only the peer that needs it is lost. */
    private void connecting() throws IOException {
        try (DrivenEngine writer = new DrivenEngine(options, "writer", MEMORY_BYTES);
                DrivenEngine target = new DrivenEngine(options, "target", MEMORY_BYTES)) {
            writer.alongside(target);
            moveAPage(writer, target, 0);
            awaitQuiet(writer, target);
            List<String> before = descriptors();
            int lost = 0;
            for (int free = 0; free <= ENOUGH; free++) {
                Admission admission = target.engine().admit("writer");
                leave(free);
                Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
                writer.await(
                        "an answer with " + free + " free descriptors",
                        () -> writer.ready.contains(peer) || writer.lost.containsKey(peer.id()));
                lost += writer.ready.contains(peer) ? 0 : 1;
                leaveAll();
                writer.engine().disconnect(peer);
                target.engine().revoke(admission);
                DrivenEngine.awaitBoth(
                        "the end of the admission",
                        target,
                        writer,
                        () -> target.closedAdmissions.containsKey(admission.id()));
                moveAPage(writer, target, 1 + free);
            }
            require(lost > 0 && lost <= ENOUGH, lost + " peers of " + (ENOUGH + 1) + " were lost");
            System.out.println(lost + " peers were lost for want of descriptors");
            DrivenEngine.awaitBoth("the descriptors of before", target, writer, () -> isWithin(before, descriptors()));
        }
    }

    /** Of those before some may have been about to be closed. */
    private static boolean isWithin(List<String> before, List<String> now) {
        List<String> more = new ArrayList<>(now);
        before.forEach(more::remove);
        return more.isEmpty();
    }

    private static void moveAPage(DrivenEngine writer, DrivenEngine target, long cookie) {
        Admission admission = target.engine().admit("writer");
        Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        writer.await("the peer", () -> writer.ready.contains(peer) || writer.lost.containsKey(peer.id()));
        if (!writer.ready.contains(peer)) { // the limit is short for a busy machine
            String detail = writer.lost.get(peer.id()).detail();
            require(detail.contains(" in time"), "a peer was lost: " + detail);
            target.engine().revoke(admission);
            moveAPage(writer, target, cookie);
            return;
        }
        WindowRanges all = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
        ImmWindow window = target.openWindow(admission, all, 1, cookie);
        RemoteWindow remote = writer.engine()
                .allow(peer, window.imm(), WindowArea.of(target.region().descriptor(), all));
        writer.submit(
                peer,
                new SingleWrite(writer.region(), 0, target.region().descriptor(), 0, MEMORY_BYTES, remote, 1),
                cookie);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(cookie));
        window.close(true);
        writer.engine().disconnect(peer);
        DrivenEngine.awaitBoth(
                "the end of the admission", target, writer, () -> target.closedAdmissions.containsKey(admission.id()));
    }

    /** Rejected sockets exist for a second at most. */
    private static void awaitQuiet(DrivenEngine writer, DrivenEngine target) {
        long beganNs = System.nanoTime();
        DrivenEngine.awaitBoth("farewells", target, writer, () -> System.nanoTime() - beganNs > 1_500_000_000L);
    }

    /** A refused accept is not retried in a busy loop. */
    private void accepting() {
        AtomicLong nowNs = new AtomicLong();
        EventLoop loop = new EventLoop(LIB_C, nowNs::get);
        String name = "kvmessenger-scarce-" + ProcessHandle.current().pid();
        List<Hello> hellos = new ArrayList<>();
        Listener listener = new Listener(
                loop,
                SOCKETS.listenAbstract(name),
                new Figures(),
                fd -> true,
                new Random(1),
                (fd, hello, asked, atNs) -> hellos.add(hello));
        leave(1);
        int first = SOCKETS.connectAbstract(name);
        require(first >= 0, "connecting returned " + first);
        require(loop.poll(0) == 1, "the first accept was not tried");
        for (int cycle = 0; cycle < 100; cycle++) {
            require(
                    loop.poll(0) == 0 && listener.doWork(nowNs.get()) == 0,
                    "the accept was tried again in duty cycle " + cycle);
        }
        leaveAll();
        nowNs.addAndGet(Listener.ACCEPT_PAUSE_NS);
        listener.doWork(nowNs.get());
        require(loop.poll(0) == 1, "the accept was not tried again after the pause");
        listener.close();
        loop.close();
        LIB_C.close(first);
    }

    /** An engine that cannot be opened leaves nothing behind. */
    private void opening() throws IOException {
        TransferEngines.open(options).close();
        List<String> before = descriptors();
        int failed = 0;
        for (int free = 0; free <= ENOUGH; free++) {
            leave(free);
            try {
                TransferEngines.open(options).close();
            } catch (IllegalStateException e) {
                failed++;
            }
            leaveAll();
            requireSame(before, descriptors());
        }
        require(failed > 0 && failed <= ENOUGH, failed + " engines of " + (ENOUGH + 1) + " failed to open");
    }

    /** Files are limited to less than a ring: shared memory cannot be offered, so sockets must do. */
    private void fallingBack() {
        try (DrivenEngine writer = new DrivenEngine(options, "writer", MEMORY_BYTES);
                DrivenEngine target = new DrivenEngine(options, "target", MEMORY_BYTES)) {
            writer.alongside(target);
            Admission admission = target.engine().admit("writer");
            Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            writer.await("the peer", () -> writer.ready.contains(peer));
            require(peer.transport().equals(TransferOptions.TCP), "the peer was reached by " + peer.transport());
            moveAPage(writer, target, 1);
        }
    }

    /** Opens descriptors until only {@code free} are left to the process. */
    private void leave(int free) {
        for (int fd = take(); fd >= 0; fd = take()) {
            ballast.push(fd);
        }
        for (int i = 0; i < free; i++) {
            LIB_C.close(ballast.pop());
        }
    }

    private static int take() {
        return LIB_C.eventfd(0, MemoryApi.EFD_CLOEXEC);
    }

    private void leaveAll() {
        ballast.forEach(LIB_C::close);
        ballast.clear();
    }

    private static List<String> descriptors() {
        try (Stream<Path> fds = Files.list(Path.of("/proc/self/fd"))) {
            return fds.map(ScarceProcess::targetOf).sorted().toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static String targetOf(Path fd) {
        try {
            return Files.readSymbolicLink(fd).toString().replaceAll("\\d+", "N");
        } catch (IOException e) {
            // The descriptor of the listing itself is gone by now.
            return "";
        }
    }

    private static void requireSame(List<String> before, List<String> after) {
        require(before.equals(after), "held before: " + before + ", after: " + after);
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
