package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.DeterminismChecker;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.function.LongFunction;
import java.util.stream.LongStream;

/**
 * Runs seeds from the command line: {@code --seed N} one, {@code --seeds A..B} a range, {@code --weather quiet} without
 * faults, so that everything has to arrive, {@code --weather sound} with faults of engines, clients and routers only,
 * {@code --mutation M} with a bug injected, {@code --fabric F} over this fabric instead of the one that the seed draws
 * (with the Java engine), {@code --sources device|host} with prefillers' pages there,
 * {@code --beside ports|clocks|pulls|pulls_and_ports|pulls_and_clocks|idle|idle_and_pulls|idle_and_ports|idle_and_clocks}
 * with {@link Hardships}, {@code --subject echo} with messengers that move no KV
 * ({@link EchoSimulation}), of which only seeds, weather and {@code --beside ports} can be asked for, {@code --subject
 * weights} with trainers and servers ({@link WeightsSimulation}), of which {@code --beside clocks} can be asked for too.
 * Exit status 1 if a seed fails.
 */
public final class SimulationMain {
    /** Seeds 1 to this run by default, here and in the tests: about 10 s on two cores, with Python a minute on one. */
    public static final long SEEDS = 1000;

    /** The command line's request. */
    private record Asked(
            long from,
            long to,
            Weather weather,
            String mutation,
            String fabric,
            String sources,
            String beside,
            String subject) {
        private static final String DRAWN = "";

        static Asked read(String[] args) {
            Asked asked = new Asked(1, SEEDS, Weather.FAULTY, "NONE", DRAWN, DRAWN, "NONE", "kv_cache");
            for (int i = 0; i + 1 < args.length; i += 2) {
                asked = asked.with(args[i], args[i + 1]);
            }
            return asked;
        }

        private Asked with(String option, String value) {
            String[] ends = value.split("\\.\\.", 2);
            return switch (option) {
                case "--seed", "--seeds" ->
                    new Asked(
                            Long.parseLong(ends[0]),
                            Long.parseLong(ends[ends.length - 1]),
                            weather,
                            mutation,
                            fabric,
                            sources,
                            beside,
                            subject);
                case "--weather" ->
                    new Asked(
                            from,
                            to,
                            Weather.valueOf(value.toUpperCase(Locale.ROOT)),
                            mutation,
                            fabric,
                            sources,
                            beside,
                            subject);
                case "--mutation" -> new Asked(from, to, weather, value, fabric, sources, beside, subject);
                case "--fabric" ->
                    new Asked(from, to, weather, mutation, value.toUpperCase(Locale.ROOT), sources, beside, subject);
                case "--sources" -> new Asked(from, to, weather, mutation, fabric, value, beside, subject);
                case "--beside" ->
                    new Asked(from, to, weather, mutation, fabric, sources, value.toUpperCase(Locale.ROOT), subject);
                case "--subject" -> new Asked(from, to, weather, mutation, fabric, sources, beside, value);
                default ->
                    throw new IllegalArgumentException(option
                            + " is none of --seed N, --seeds A..B, --weather faulty|sound|quiet, --mutation NAME,"
                            + " --fabric tcp|staged|rdma|shared_memory|rdm, --sources device|host,"
                            + " --beside ports|clocks|pulls|pulls_and_ports|pulls_and_clocks|idle|idle_and_pulls"
                            + "|idle_and_ports|idle_and_clocks|divided|divided_and_ports|divided_and_clocks,"
                            + " --subject kv_cache|echo|weights");
            };
        }

        Scenario scenario(long seed) {
            Scenario drawn = Scenario.draw(seed, weather);
            Scenario over = fabric.equals(DRAWN) ? drawn : drawn.with(FabricKind.valueOf(fabric));
            Scenario placed = sources.equals(DRAWN) ? over : over.with(sources.equals("device"));
            return placed.with(Hardships.Kind.valueOf(beside).draw(seed));
        }
    }

    private SimulationMain() {}

    public static void main(String[] args) {
        System.exit(run(args));
    }

    /** With the Java model of an engine, on all cores; returns the exit status. */
    public static int run(String[] args) {
        Asked asked = Asked.read(args);
        if (asked.subject.equals("echo")) {
            Hardships.Kind beside = Hardships.Kind.valueOf(asked.beside);
            return run(asked, true, seed -> EchoSimulation.run(seed, asked.weather, beside));
        }
        if (asked.subject.equals("weights")) {
            Hardships.Kind beside = Hardships.Kind.valueOf(asked.beside);
            EngineFault fault = EngineFault.valueOf(asked.mutation);
            return run(asked, true, seed -> WeightsSimulation.run(seed, asked.weather, beside, fault));
        }
        Mutation mutation = Mutation.valueOf(asked.mutation);
        return run(
                asked,
                true,
                (asked.fabric + asked.sources).equals(Asked.DRAWN) && asked.beside.equals("NONE")
                        ? drawn(asked.weather, mutation)
                        : over(asked, mutation));
    }

    private static LongFunction<Simulation.Result> drawn(Weather weather, Mutation mutation) {
        return switch (weather) {
            case FAULTY -> seed -> Simulation.run(seed, mutation);
            case SOUND -> seed -> Simulation.runSoundly(seed, mutation);
            case QUIET -> Simulation::runQuietly;
        };
    }

    private static LongFunction<Simulation.Result> over(Asked asked, Mutation mutation) {
        return seed -> Simulation.run(asked.weather, asked.scenario(seed), mutation);
    }

    /** With the real connector in Python, in this thread; returns the exit status. */
    public static int run(String[] args, PythonEngines engines) {
        Asked asked = Asked.read(args);
        if (!asked.subject.equals("kv_cache")) {
            return 0; // the connector in Python is of a KV cache
        }
        PythonEngines mutated = engines.with(PythonMutation.valueOf(asked.mutation));
        return run(
                asked,
                false,
                switch (asked.weather) {
                    case FAULTY -> seed -> Simulation.run(seed, mutated);
                    case SOUND -> seed -> Simulation.runSoundly(seed, mutated);
                    case QUIET -> seed -> Simulation.runQuietly(seed, mutated);
                });
    }

    private static int run(Asked asked, boolean allCores, LongFunction<Simulation.Result> run) {
        return asked.from == asked.to ? runOne(asked.from, run) : runRange(asked, allCores, run);
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

    private static int runRange(Asked asked, boolean allCores, LongFunction<Simulation.Result> run) {
        long begunNs = System.nanoTime();
        Map<String, Integer> countByKind = new ConcurrentSkipListMap<>();
        LongStream seeds = LongStream.rangeClosed(asked.from, asked.to);
        List<Simulation.Result> failed = (allCores ? seeds.parallel() : seeds)
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
                "%d seeds, %d failed, %.1f s%n",
                asked.to - asked.from + 1, failed.size(), (System.nanoTime() - begunNs) / 1e9);
        return failed.isEmpty() ? 0 : 1;
    }
}
