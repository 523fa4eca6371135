package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * Copies four runs of memory in parallel with non-temporal stores, which bypass the caches: for memory that is next
 * read elsewhere.
 *
 * <p>A routine of machine code in a page of its own. When a call returns, no later store of the thread becomes visible
 * before the copied bytes. Safe from any thread. Addresses are not checked, and an unaligned target kills the process.
 */
public final class StreamingCopy {
    /** Number of runs that are copied in parallel. */
    public static final int LANES = 4;
    /** The length of each run must be a multiple of this. */
    public static final int STEP_BYTES = 128;
    /** The address of each target must be a multiple of this; multiples of a cache line are fastest. */
    public static final int TARGET_ALIGNMENT_BYTES = 16;
    /** Limit per lane: some tens of microseconds, in which the thread does not stop for a garbage collection. */
    public static final long LENGTH_MAX_BYTES = 64 << 10;
    /** Sources, then targets. */
    public static final long ADDRESSES_BYTES = 2L * LANES * Long.BYTES;

    private static final long CODE_BYTES = 4096;

    private final MethodHandle routine;

    private StreamingCopy(MethodHandle routine) {
        this.routine = routine;
    }

    private static final class OfThisProcess {
        private static final StreamingCopy COPY;
        private static final String ABSENCE;

        static {
            StreamingCopy copy = null;
            String absence = "";
            try {
                copy = open(new FfmLibC(), System.getProperty("os.arch"));
            } catch (IllegalStateException e) {
                absence = e.getMessage();
            }
            COPY = copy;
            ABSENCE = absence;
        }
    }

    /** Null if unsupported, for the reason in {@link #absence}. Its page stays until the process ends. */
    public static StreamingCopy ofThisProcess() {
        return OfThisProcess.COPY;
    }

    /** Why this process has none, in one line; empty if it has one. */
    public static String absence() {
        return OfThisProcess.ABSENCE;
    }

    /** @throws IllegalStateException saying in one line why there is none */
    static StreamingCopy open(LibC libC, String architecture) {
        if (!architecture.equals("amd64")) {
            throw new IllegalStateException(
                    "no streaming copy: it is written for x86_64, and this processor is " + architecture);
        }
        byte[] code = StreamingCopyCode.assemble();
        long address = libC.mmap(
                0,
                CODE_BYTES,
                MemoryApi.PROT_READ | MemoryApi.PROT_WRITE,
                MemoryApi.MAP_PRIVATE | MemoryApi.MAP_ANONYMOUS,
                -1,
                0);
        if (address < 0) {
            throw new IllegalStateException(
                    "no streaming copy: mmap of a page failed with " + Errno.name((int) -address));
        }
        ForeignMemory.at(address, CODE_BYTES).copyFrom(MemorySegment.ofArray(code));
        // Never writable and executable at once.
        int result = libC.mprotect(address, CODE_BYTES, MemoryApi.PROT_READ | MemoryApi.PROT_EXEC);
        if (result < 0) {
            libC.munmap(address, CODE_BYTES);
            throw new IllegalStateException("no streaming copy: the system lets no page be made executable, mprotect"
                    + " failed with " + Errno.name(-result));
        }
        return new StreamingCopy(downcall(address));
    }

    @SuppressWarnings("restricted")
    private static MethodHandle downcall(long address) {
        return Linker.nativeLinker()
                .downcallHandle(
                        MemorySegment.ofAddress(address),
                        FunctionDescriptor.ofVoid(JAVA_LONG, JAVA_LONG),
                        Linker.Option.critical(false));
    }

    /**
     * Copies {@code lengthBytes} of each lane.
     *
     * @param addresses {@link #ADDRESSES_BYTES} of native memory: the sources, then the targets
     */
    public void copy(MemorySegment addresses, long lengthBytes) {
        if (lengthBytes <= 0 || lengthBytes > LENGTH_MAX_BYTES || lengthBytes % STEP_BYTES != 0) {
            throw new IllegalArgumentException("cannot copy " + lengthBytes + " bytes at once");
        }
        try {
            routine.invokeExact(addresses.address(), lengthBytes);
        } catch (Throwable t) {
            throw Downcalls.unexpected(t);
        }
    }
}
