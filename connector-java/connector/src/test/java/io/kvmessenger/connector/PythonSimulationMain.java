package io.kvmessenger.connector;

import io.kvmessenger.testkit.sim.PythonEngines;
import io.kvmessenger.testkit.sim.SimulationMain;
import java.nio.file.Path;

/**
 * The simulation from the command line, first with Java's model of an engine, then with the real connector in Python if
 * {@code -Dkvmessenger.jep} says where Jep is; {@code -Dkvmessenger.python} is this project's folder {@code python}.
 */
public final class PythonSimulationMain {
    private PythonSimulationMain() {}

    public static void main(String[] args) {
        System.out.println("== engines modelled in Java");
        int status = SimulationMain.run(args);
        String jep = System.getProperty("kvmessenger.jep", "");
        if (jep.isEmpty()) {
            System.out.println("== the connector in Python: skipped, there is no Jep");
            System.exit(status);
        }
        System.out.println("== the connector in Python");
        Path pythonSources = Path.of(System.getProperty("kvmessenger.python"));
        try (PythonEngines engines = PythonEngines.open(Path.of(jep), pythonSources, new ProductionBoundary())) {
            status = Math.max(status, SimulationMain.run(args, engines));
        }
        System.exit(status);
    }
}
