package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.DeterminismChecker;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.function.LongFunction;
import java.util.stream.LongStream;

/**
 * Runs seeds from the command line: {@code --seed N} one, {@code --seeds A..B} a range on all cores, {@code --faults off}
 * with none, so that everything has to arrive, {@code --mutation M} with a bug put in. Ends with status 1 when a seed fails.
 */
public final class SimulationMain {
    private SimulationMain() {}

    public static void main(String[] args) {
        Mutation mutation = Mutation.NONE;
        boolean faults = true;
        long from = 1;
        long to = 1000;
        for (int i = 0; i + 1 < args.length; i += 2) {
            switch (args[i]) {
                case "--seed" -> {
                    from = Long.parseLong(args[i + 1]);
                    to = from;
                }
                case "--seeds" -> {
                    String[] ends = args[i + 1].split("\\.\\.", 2);
                    from = Long.parseLong(ends[0]);
                    to = Long.parseLong(ends[ends.length - 1]);
                }
                case "--faults" -> faults = args[i + 1].equals("on");
                case "--mutation" -> mutation = Mutation.valueOf(args[i + 1]);
                default ->
                    throw new IllegalArgumentException(
                            args[i] + " is none of --seed N, --seeds A..B, --faults on|off, --mutation NAME");
            }
        }
        Mutation chosen = mutation;
        LongFunction<Simulation.Result> run = faults ? seed -> Simulation.run(seed, chosen) : Simulation::runQuietly;
        System.exit(from == to ? runOne(from, run) : runRange(from, to, run));
    }

    private static int runOne(long seed, LongFunction<Simulation.Result> run) {
        DeterminismChecker.check(seed, s -> run.apply(s).traceHash());
        Simulation.Result result = run.apply(seed);
        if (result.passed()) {
            System.out.print(result.lastEvents());
        }
        System.out.println(result.report());
        if (!result.passed() && result.violation().getCause() != null) {
            result.violation().getCause().printStackTrace(System.out);
        }
        return result.passed() ? 0 : 1;
    }

    private static int runRange(long from, long to, LongFunction<Simulation.Result> run) {
        long begunNs = System.nanoTime();
        Map<String, Integer> countByKind = new ConcurrentSkipListMap<>();
        List<Simulation.Result> failed = LongStream.rangeClosed(from, to)
                .parallel()
                .mapToObj(run)
                .peek(result -> result.countByKind().forEach((kind, n) -> countByKind.merge(kind, n, Integer::sum)))
                .filter(result -> !result.passed())
                .toList();
        countByKind.forEach((kind, count) -> System.out.printf("%10d %s%n", count, kind));
        for (Simulation.Result result : failed) {
            System.out.println("seed " + result.seed() + " violated "
                    + result.violation().checker() + ": " + result.violation().getMessage());
        }
        System.out.printf(
                "%d seeds, %d failed, %.1f s%n", to - from + 1, failed.size(), (System.nanoTime() - begunNs) / 1e9);
        return failed.isEmpty() ? 0 : 1;
    }
}
