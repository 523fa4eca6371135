package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.kvmessenger.testkit.sim.PythonEngines;
import io.kvmessenger.testkit.sim.Simulation;
import java.nio.file.Path;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;

/** What tests of the simulation with the real Python connector share. An interpreter is its thread's: one class runs at a time. */
abstract class PythonSimulation {
    private static final String JEP = System.getProperty("kvmessenger.jep", "");
    private static final long SEEDS = Long.getLong("kvmessenger.sim.pythonSeeds", 200);

    /** A JVM opens Python once: it stays for the next class, and until the process ends. */
    static PythonEngines engines;

    @BeforeAll
    static void openPython() {
        if (engines == null && !JEP.isEmpty()) {
            Path pythonSources = Path.of("../../python").toAbsolutePath().normalize();
            engines = PythonEngines.open(Path.of(JEP), pythonSources, new ProductionBoundary());
        }
    }

    @BeforeEach
    void needPython() {
        assumeTrue(engines != null, "no Jep: -Dkvmessenger.jep names no folder of it, examples/setup/find-jep does");
    }

    /** Every second seed: one core runs one interpreter, and the other half is another class's. */
    static void keepEveryPromise(long firstSeed) {
        long begunNs = System.nanoTime();
        for (long seed = firstSeed; seed <= SEEDS; seed += 2) {
            Simulation.Result result = Simulation.run(seed, engines);
            assertThat(result.passed()).as(result.report()).isTrue();
        }
        System.out.printf(
                "simulation with Python: every second of %d seeds in %.1f s%n",
                SEEDS, (System.nanoTime() - begunNs) / 1e9);
    }
}
