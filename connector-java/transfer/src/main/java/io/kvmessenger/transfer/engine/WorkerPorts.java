package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Links;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.spi.Transport;
import java.util.List;

/**
 * How one worker waits, and what it reaches peers by. A value.
 *
 * @param poller closed with the engine; the same one for several workers where one thread runs them all
 * @param links the worker's own, closed with it; where peers come in, those of the first worker hand them to the others'
 * @param transports opened with the engine, the first preferred; each worker has domains of its own
 */
public record WorkerPorts(Poller poller, Links links, List<Transport> transports) {}
