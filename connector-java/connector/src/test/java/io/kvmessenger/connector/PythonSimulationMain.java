package io.kvmessenger.connector;

import io.kvmessenger.testkit.sim.PythonEngines;
import io.kvmessenger.testkit.sim.SimulationMain;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The simulation from the command line: with Java's model of an engine, with such engines that pull from each other, and
 * with the real connector in Python if {@code -Dkvmessenger.jep} says where Jep is; {@code -Dkvmessenger.python} is this
 * project's folder {@code python}. Where {@code --beside} or {@code --subject} is given, that alone, with Java's model.
 */
public final class PythonSimulationMain {
    private PythonSimulationMain() {}

    public static void main(String[] args) {
        System.out.println("== engines modelled in Java");
        int status = SimulationMain.run(args);
        if (List.of(args).contains("--beside") || List.of(args).contains("--subject")) {
            System.exit(status); // Java's engines alone know these
        }
        System.out.println("== engines modelled in Java that pull from each other");
        List<String> pulling = new ArrayList<>(List.of(args));
        pulling.addAll(List.of("--beside", "pulls"));
        status = Math.max(status, SimulationMain.run(pulling.toArray(String[]::new)));
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
