package io.kvmessenger.connector.boot;

import java.nio.charset.StandardCharsets;

/** Boots a JVM for tests of the Python side: the same table, over {@link SimulatedMessengers}. */
public final class SimulatedBoot {
    private SimulatedBoot() {}

    public static long boot() {
        return FunctionTable.publish(new SimulatedMessengers());
    }

    /** A training run for the class cache. */
    public static void main(String[] args) {
        if (boot() == 0) {
            throw new AssertionError("no table");
        }
        SimulatedMessengers messengers = new SimulatedMessengers();
        OpenResult opened = messengers.open(
                "{\"options\":{\"engineId\":\"here\",\"listenPort\":0}}".getBytes(StandardCharsets.UTF_8));
        messengers.stats(opened.handle());
        messengers.close(opened.handle());
    }
}
