package io.kvmessenger.connector.boot;

/** Boots a JVM for tests of the Python side: the same table, over {@link SimulatedMessengers}. */
public final class SimulatedBoot {
    private SimulatedBoot() {}

    public static long boot() {
        return FunctionTable.publish(new SimulatedMessengers());
    }
}
