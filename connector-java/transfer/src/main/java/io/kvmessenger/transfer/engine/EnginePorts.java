package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.spi.Links;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.spi.Transport;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.random.RandomGenerator;

/**
 * What an engine does not make itself: time, randomness, how its worker waits, and the transports. A value.
 *
 * @param libC asked about the memory that is registered
 * @param clock monotonic, in ns
 * @param random of what keys are made
 * @param poller the engine's own, closed with it
 * @param links the engine's own, closed with it
 * @param transports opened with the engine, the first preferred
 */
public record EnginePorts(
        LibC libC,
        LongSupplier clock,
        RandomGenerator random,
        Poller poller,
        Links links,
        List<Transport> transports) {}
