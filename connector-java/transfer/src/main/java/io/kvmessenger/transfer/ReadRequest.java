package io.kvmessenger.transfer;

import io.kvmessenger.transfer.TransferRequest.PageList;

/**
 * A request to copy pages of a peer's region into a region of this engine. Its arrays belong to the engine until the
 * completion.
 *
 * @param from the peer's window that contains the pages
 * @param source the peer's region
 * @param targetPages destinations in the target region; no two may overlap
 */
public record ReadRequest(
        ReadKey from,
        RegionDescriptor source,
        PageList sourcePages,
        Region target,
        PageList targetPages,
        int pageBytes) {
    public ReadRequest {
        if (sourcePages.count() != targetPages.count() || sourcePages.count() == 0 || pageBytes < 1) {
            throw new IllegalArgumentException(sourcePages.count() + " source pages, " + targetPages.count()
                    + " target pages of " + pageBytes + " bytes, expected as many of both, at least 1 of each");
        }
    }
}
