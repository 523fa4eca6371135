package io.kvmessenger.testkit.sim;

/** Thrown by a port because the run says so. A messenger's thread survives it, as it survives any exception. */
public final class PlantedFault extends RuntimeException {
    /** What every message of one ends with. */
    public static final String SENTENCE = " fails in this run";

    private static final long serialVersionUID = 1;

    PlantedFault(String port) {
        super(port + SENTENCE);
    }
}
