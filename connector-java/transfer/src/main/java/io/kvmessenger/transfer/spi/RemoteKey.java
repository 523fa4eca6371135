package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;

/**
 * What a peer needs to write to a region through one domain. A value.
 *
 * @param regionId of the region
 * @param lengthBytes of the region
 * @param descriptor maps the region's memory from offset 0, or {@link Memory.Host#NOT_SHAREABLE}; the key does not own
 *     it
 */
public record RemoteKey(int regionId, long lengthBytes, int descriptor) {}
