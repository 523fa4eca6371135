package io.kvmessenger.connector.boot;

/** Where an open messenger listens, and the address of its layer counter. A port of -1 means: not listening. */
public record OpenResult(
        long handle,
        String engineId,
        String incarnation,
        String controlHost,
        int controlPort,
        String metricsHost,
        int metricsPort,
        long layerCounterAddress) {}
