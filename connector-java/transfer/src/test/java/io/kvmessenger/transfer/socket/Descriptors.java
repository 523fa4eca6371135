package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketApi;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.Stream;

/** Descriptors sent to this process by a test, which can be told from all others. Any thread. */
public final class Descriptors {
    private static final LibC LIB_C = new FfmLibC();
    private static final String GIFT = "kvm-gift";

    private Descriptors() {}

    /** A file by that name; the caller's. */
    public static int gift() {
        try (Arena arena = Arena.ofConfined()) {
            return LIB_C.memfd_create(arena.allocateFrom(GIFT), MemoryApi.MFD_CLOEXEC);
        }
    }

    /** Sends bytes and descriptors over a Unix socket; returns what the system call does. */
    public static long send(int socket, byte[] bytes, int... fds) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment copy = arena.allocate(bytes.length);
            copy.copyFrom(MemorySegment.ofArray(bytes));
            MemorySegment vector = arena.allocate(IoVector.SIZE_BYTES, 8);
            IoVector.set(vector, 0, copy.address(), bytes.length);
            MemorySegment header = arena.allocate(MessageHeader.SIZE_BYTES, 8);
            MessageHeader.vectors(header, vector, 1);
            MemorySegment control = arena.allocate(MessageHeader.controlSpaceBytes(fds.length), 8);
            MessageHeader.setDescriptors(control, fds);
            MessageHeader.control(header, control, control.byteSize());
            return LIB_C.sendmsg(socket, header, SocketApi.MSG_NOSIGNAL);
        }
    }

    /** How many descriptors of gifts this process has, those on their way not counted. */
    public static long gifts() throws IOException {
        try (Stream<Path> fds = Files.list(Path.of("/proc/self/fd"))) {
            return fds.filter(Descriptors::isGift).count();
        }
    }

    private static boolean isGift(Path fd) {
        try {
            return Files.readSymbolicLink(fd).toString().contains(GIFT);
        } catch (IOException e) {
            // The descriptor of the listing itself is gone by now.
            return false;
        }
    }
}
