package io.kvmessenger.benchmarks;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** The two-process benchmark of the TransferEngine: this process writes into {@link KvPerfTarget}, which it starts. */
public final class KvPerf {
    private static final int EXIT_USAGE = 2;
    /** Limit on tries per requested round: rounds that other programs disturbed are repeated. */
    private static final int ROUND_TRIES_MAX = 3;

    /** Consecutive rounds with hardly any compilation before the JVMs count as warm; it is counted at its end. */
    private static final int SETTLED_ROUNDS = 4;

    private static final int COMPILED_MILLIS_MAX = 3;
    private static final int WARM_UP_ROUNDS_MAX = 80;
    /** Rounds that last minutes, over a slow link, are no longer for the compiler's sake. */
    private static final long WARM_UP_LIMIT_NS = TimeUnit.MINUTES.toNanos(2);

    /** What is done with an endpoint that is connected. */
    interface Rounds {
        void run(KvPerfOptions options, Initiator initiator) throws IOException, InterruptedException;
    }

    private KvPerf() {}

    public static void main(String[] args) throws IOException, InterruptedException {
        if (List.of(args).contains("--help")) {
            System.out.print(KvPerfOptions.HELP);
            return;
        }
        try {
            if (args.length == 2 && args[0].equals("--listen")) {
                TargetHost.serve(args[1], System.err);
            } else {
                run(args, KvPerf::run);
            }
        } catch (IllegalArgumentException e) {
            System.err.println("kvperf: " + e.getMessage());
            System.exit(EXIT_USAGE);
        } catch (IllegalStateException | IOException e) {
            System.err.println("kvperf: " + e.getMessage());
            System.exit(1);
        }
    }

    static void run(String[] args, Rounds rounds) throws IOException, InterruptedException {
        KvPerfOptions options = KvPerfOptions.parse(args);
        if (!options.dial().isEmpty()) {
            try (TargetHost target = TargetHost.dial(options.dial(), args)) {
                run(KvPerfOptions.parse(target.arguments()), target.control(), rounds);
            }
            return;
        }
        Process target = startTarget(args, options.targetPrefix());
        try {
            run(options, new ControlPipe(target.getInputStream(), target.getOutputStream()), rounds);
        } finally {
            if (!target.waitFor(5, TimeUnit.SECONDS)) {
                target.destroyForcibly();
            }
        }
    }

    private static void run(KvPerfOptions options, ControlPipe control, Rounds rounds)
            throws IOException, InterruptedException {
        try (Endpoint endpoint = new Endpoint(options, options.hosts(), "target")) {
            control.awaitBegin();
            List<ControlPipe.Hello> remote = control.receiveHellos();
            control.sendHellos(endpoint.hellos());
            endpoint.connect(remote);
            control.meanwhile(endpoint::doWork);
            requireTransport(options, endpoint);
            control.receiveNextRound();
            Initiator initiator = new Initiator(options, control, endpoint);
            rounds.run(options, initiator);
            initiator.end();
        }
    }

    private static void run(KvPerfOptions options, Initiator initiator) throws IOException, InterruptedException {
        if (options.turns()) {
            runWhenAsked(options, initiator);
        } else {
            print(options, options.yardstick() ? measureInterleaved(options, initiator) : measure(options, initiator));
        }
    }

    private static void requireTransport(KvPerfOptions options, Endpoint endpoint) {
        if (!endpoint.transport().equals(options.transport())) {
            throw new IllegalStateException(
                    "the data path is " + endpoint.transport() + ", --transport asks for " + options.transport());
        }
    }

    /** Starts it with the Java, class path and flags of this process. */
    private static Process startTarget(String[] args, List<String> prefix) throws IOException {
        List<String> command = new ArrayList<>(prefix);
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), KvPerfTarget.class.getName()));
        command.addAll(Arrays.asList(args));
        return new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
    }

    private static Report measure(KvPerfOptions options, Initiator initiator) throws IOException {
        warmUp(options, initiator);
        Report report = new Report(options);
        long startedNs = System.nanoTime();
        while (goesOn(options, report, startedNs)) {
            report.add(checked(initiator.run()));
        }
        return report;
    }

    /** Alternates the two (A B A B), so that both are measured under the same conditions. */
    private static Report measureInterleaved(KvPerfOptions options, Initiator initiator)
            throws IOException, InterruptedException {
        try (Yardstick yardstick = Yardstick.start(options)) {
            warmUp(options, initiator);
            yardstick.run();
            Report report = new Report(options);
            long startedNs = System.nanoTime();
            while (goesOn(options, report, startedNs)) {
                report.add(checked(initiator.run()), yardstick.run());
            }
            return report;
        }
    }

    /** Runs a round for each line of standard input, and answers with a line: to interleave with another build. */
    private static void runWhenAsked(KvPerfOptions options, Initiator initiator)
            throws IOException, InterruptedException {
        if (options.beside().isEmpty()) {
            warmUp(options, initiator);
            runWhenAsked(initiator, null);
            return;
        }
        BesideRun beside = BesideRun.start(Path.of(options.beside()));
        try {
            warmUp(options, initiator);
            runWhenAsked(initiator, beside);
        } finally {
            beside.end();
        }
    }

    private static void runWhenAsked(Initiator initiator, BesideRun beside) throws IOException {
        System.out.println("ready");
        for (int asked = System.in.read(); asked >= 0; asked = System.in.read()) {
            if (asked == '\n') {
                Initiator.Round round = checked(initiator.run());
                System.out.println(round.durationNs() + " " + round.cpuNs());
            } else if (beside != null && (asked == '+' || asked == '-')) {
                beside.setFlowing(asked == '+');
            } else {
                return;
            }
        }
    }

    /**
     * Runs until the JVMs are warm: engines run for days, so compilation must not be part of the result, and on few
     * cores the compiler would compete with the measured threads.
     */
    static void warmUp(KvPerfOptions options, Initiator initiator) throws IOException {
        long startedNs = System.nanoTime();
        long compiledMillis = 0;
        int settled = 0;
        for (int i = 0; i < WARM_UP_ROUNDS_MAX && System.nanoTime() - startedNs < WARM_UP_LIMIT_NS; i++) {
            if (i >= options.warmUpRounds() && settled >= SETTLED_ROUNDS) {
                return;
            }
            Initiator.Round round = checked(initiator.run());
            settled = round.compiledMillis() - compiledMillis > COMPILED_MILLIS_MAX ? 0 : settled + 1;
            compiledMillis = round.compiledMillis();
        }
    }

    private static boolean goesOn(KvPerfOptions options, Report report, long startedNs) {
        if (report.roundCount() == 0) {
            return true;
        }
        return options.seconds() == 0
                ? report.cleanRoundCount() < options.rounds()
                        && report.roundCount() < options.rounds() * ROUND_TRIES_MAX
                : System.nanoTime() - startedNs < TimeUnit.SECONDS.toNanos(options.seconds());
    }

    static Initiator.Round checked(Initiator.Round round) {
        if (round.badBytes() != 0) {
            throw new IllegalStateException(round.badBytes() + " bytes arrived wrong");
        }
        return round;
    }

    private static void print(KvPerfOptions options, Report report) throws IOException {
        String line = Report.json(report.figures());
        System.out.println(report.sentence());
        System.out.println(line);
        if (!options.output().isEmpty()) {
            Files.writeString(
                    Path.of(options.output()),
                    line + "\n",
                    StandardCharsets.UTF_8,
                    StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        }
    }
}
