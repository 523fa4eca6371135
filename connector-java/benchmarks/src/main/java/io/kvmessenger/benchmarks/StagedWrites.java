package io.kvmessenger.benchmarks;

import com.sun.management.ThreadMXBean;
import io.kvmessenger.transfer.TransferOptions;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * Compares the transports that stage a device's memory on both sides, in turns of one run, by GB/s of a writer and a
 * target on one thread, and by what they allocate. Prints a JSON line for each transport and page length.
 *
 * <p>Argument: NVIDIA's driver, or a stand-in for it, whose copies are those of the processor.
 */
public final class StagedWrites {
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    private static final List<String> TRANSPORTS = List.of(TransferOptions.TCP, TransferOptions.LIBFABRIC);
    private static final int[] PAGES_BYTES = {4 << 10, 64 << 10, 256 << 10};
    private static final long TURN_BYTES = 64L << 20;
    private static final int WARM_TURNS = 10;
    private static final int TURNS = 15;

    private StagedWrites() {}

    public static void main(String[] arguments) {
        for (int pageBytes : PAGES_BYTES) {
            compare(arguments[0], pageBytes);
        }
    }

    private static void compare(String library, int pageBytes) {
        List<WritePair> pairs = TRANSPORTS.stream()
                .map(transport -> WritePair.onDevice(transport, library, pageBytes))
                .toList();
        int writes = (int) (TURN_BYTES / ((long) pageBytes * WritePair.PAGES));
        double[][] gigabytesPerSecond = new double[pairs.size()][TURNS];
        long[] allocatedBytes = new long[pairs.size()];
        for (int turn = -WARM_TURNS; turn < TURNS; turn++) {
            for (int i = 0; i < pairs.size(); i++) {
                long before = THREADS.getCurrentThreadAllocatedBytes();
                long beganNs = System.nanoTime();
                pairs.get(i).write(writes);
                long tookNs = System.nanoTime() - beganNs;
                if (turn >= 0) {
                    gigabytesPerSecond[i][turn] = (double) TURN_BYTES / tookNs;
                    allocatedBytes[i] += THREADS.getCurrentThreadAllocatedBytes() - before;
                }
            }
        }
        for (int i = 0; i < pairs.size(); i++) {
            Arrays.sort(gigabytesPerSecond[i]);
            System.out.printf(
                    Locale.ROOT,
                    "{\"transport\": \"%s\", \"pageBytes\": %d, \"turns\": %d, \"gigabytesPerSecond\": %.2f,"
                            + " \"p25\": %.2f, \"p75\": %.2f, \"allocatedBytesPerWrite\": %.2f}%n",
                    TRANSPORTS.get(i),
                    pageBytes,
                    TURNS,
                    gigabytesPerSecond[i][TURNS / 2],
                    gigabytesPerSecond[i][TURNS / 4],
                    gigabytesPerSecond[i][TURNS * 3 / 4],
                    (double) allocatedBytes[i] / TURNS / writes);
        }
        pairs.forEach(WritePair::close);
    }
}
