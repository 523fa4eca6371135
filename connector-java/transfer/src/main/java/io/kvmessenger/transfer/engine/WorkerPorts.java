package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.link.Links;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.spi.Transport;
import java.util.List;

/**
 * How one worker waits, and how it reaches peers. A value.
 *
 * @param poller closed with the engine; shared by several workers if one thread runs them all
 * @param links the worker's own, closed with it; the first worker's links accept peers and hand them to the others'
 * @param transports opened with the engine, in order of preference; each worker has domains of its own
 */
public record WorkerPorts(Poller poller, Links links, List<Transport> transports) {}
