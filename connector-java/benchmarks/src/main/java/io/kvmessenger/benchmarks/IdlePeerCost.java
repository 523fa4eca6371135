package io.kvmessenger.benchmarks;

import java.util.Arrays;
import java.util.Locale;

/**
 * What peers that nothing is written to cost a small write: the time of one paged write, from submit to completion, with
 * more and more of them. Both engines run on one thread, so that each of their duty cycles counts. Prints a JSON line
 * for each number: arguments are the transport and the numbers, as in {@code shm 0 64 512}.
 */
public final class IdlePeerCost {
    private static final int WARM_UP_WRITES = 20_000;
    private static final int WRITES = 4_000;

    private IdlePeerCost() {}

    public static void main(String[] arguments) {
        try (WritePair pair = new WritePair(arguments[0])) {
            int connected = 0;
            pair.write(WARM_UP_WRITES);
            for (String number : Arrays.asList(arguments).subList(1, arguments.length)) {
                int idle = Integer.parseInt(number);
                pair.connectIdle(idle - connected);
                connected = idle;
                long[] took = new long[WRITES];
                measure(pair, took);
                measure(pair, took);
                Arrays.sort(took);
                System.out.println(String.format(
                        Locale.ROOT,
                        "{\"transport\": \"%s\", \"idlePeers\": %d, \"p50Ns\": %d, \"p10Ns\": %d}",
                        arguments[0],
                        idle,
                        took[WRITES / 2],
                        took[WRITES / 10]));
            }
        }
    }

    private static void measure(WritePair pair, long[] took) {
        for (int i = 0; i < took.length; i++) {
            long begun = System.nanoTime();
            pair.write(1);
            took[i] = System.nanoTime() - begun;
        }
    }
}
