package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;

/**
 * What a peer needs to write to a region through one domain. A value.
 *
 * @param regionId the region's
 * @param lengthBytes the region's
 * @param descriptor maps the region's memory from offset 0, or {@link Memory.Host#NOT_SHAREABLE}; never the key's own
 */
public record RemoteKey(int regionId, long lengthBytes, int descriptor) {}
