/** The interface between the engine and its transports: the port they serve, the batches they take, their events. */
package io.kvmessenger.transfer.spi;
