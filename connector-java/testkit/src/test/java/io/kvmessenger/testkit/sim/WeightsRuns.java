package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.Scenario.Weather;
import java.util.function.LongFunction;

/**
 * Runs seeds of weights for a test that has loaded the simulation by another class loader: a sentence, "" if it
 * passed.
 */
public final class WeightsRuns implements LongFunction<String> {
    private final EngineFault fault;

    public WeightsRuns(String fault) {
        this.fault = EngineFault.valueOf(fault);
    }

    @Override
    public String apply(long seed) {
        Simulation.Result result = WeightsSimulation.run(seed, Weather.FAULTY, Hardships.Kind.NONE, fault);
        return result.passed()
                ? ""
                : result.violation().checker() + ": " + result.violation().getMessage();
    }
}
