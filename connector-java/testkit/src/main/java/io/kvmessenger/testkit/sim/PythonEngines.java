package io.kvmessenger.testkit.sim;

import java.nio.file.Path;
import java.util.List;
import java.util.SplittableRandom;

/**
 * Engines in which both halves of the real Python connector decide what the messenger is told: Python runs inside this
 * JVM, in the simulation's own thread. Only one run at a time, and only by the thread that opened it.
 *
 * <p>The engine around the connector is {@code python/tests/vllm/hosted_engine.py}, which the connector's own tests use
 * too, with its steps divided where simulated time passes.
 */
public final class PythonEngines implements NodeEngine.Maker, AutoCloseable {
    private final JepInterpreter python;
    private final Boundary boundary;
    private final PythonMutation mutation;
    private final boolean bothRoles;
    private Simulation world;
    private int lastEngine;

    private PythonEngines(JepInterpreter python, Boundary boundary, PythonMutation mutation, boolean bothRoles) {
        this.python = python;
        this.boundary = boundary;
        this.mutation = mutation;
        this.bothRoles = bothRoles;
    }

    /**
     * @param jep folder of the installed Python package {@code jep}
     * @param pythonSources this project's folder {@code python}
     */
    public static PythonEngines open(Path jep, Path pythonSources, Boundary boundary) {
        JepInterpreter python = JepInterpreter.open(
                jep, List.of(pythonSources, pythonSources.resolve("tests").resolve("vllm")));
        python.exec("from hosted_engine import begin_world, start_engine, call");
        return new PythonEngines(python, boundary, PythonMutation.NONE, false);
    }

    /** The same Python with a bug injected. */
    public PythonEngines with(PythonMutation mutation) {
        return new PythonEngines(python, boundary, mutation, bothRoles);
    }

    /**
     * The same with {@code kv_both} at each engine. Requests still go one way, so the other role of each engine waits
     * for the whole run, which is longer than any limit.
     */
    public PythonEngines withBothRoles() {
        return new PythonEngines(python, boundary, mutation, true);
    }

    @Override
    public NodeEngine start(Simulation world, SimulatedNode node, PagePool pool, SplittableRandom random) {
        if (world != this.world) {
            this.world = world;
            python.invoke("begin_world", mutation.name(), bothRoles);
        }
        int layerCount = pool.geometry().ranks().getFirst().layers().size();
        Boundary.Channel channel = boundary.open(layerCount);
        PythonHost host = new PythonHost(world, node, pool, channel, boundary);
        return new PythonEngine(world, node, pool, random, host, python, ++lastEngine, channel.progress());
    }

    @Override
    public void close() {
        python.close();
    }
}
