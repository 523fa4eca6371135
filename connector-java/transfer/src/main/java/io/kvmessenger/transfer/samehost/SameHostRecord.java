package io.kvmessenger.transfer.samehost;

import io.kvmessenger.transfer.spi.PeerChannel;

/** Kinds of records between the two ends of memory that is shared within a host. */
public final class SameHostRecord {
    /** Target: the ring and its wake descriptor, as descriptors. */
    public static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Writer: the ring is mapped. */
    public static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Writer: a {@link RegionRecord} that requests a region. */
    public static final int REGION_WANTED = PeerChannel.FIRST_KIND + 2;

    /** Target: the {@link RegionRecord}, with its descriptor. */
    public static final int REGION = PeerChannel.FIRST_KIND + 3;

    /** Target: a {@link RegionRecord} with its descriptor, not requested, so that it is mapped before it is needed. */
    public static final int REGION_OFFERED = PeerChannel.FIRST_KIND + 4;

    /** Target, once: everything registered when the writer became ready has been offered. */
    public static final int ALL_OFFERED = PeerChannel.FIRST_KIND + 5;

    /** The first kind available to a transport. */
    public static final int NEXT_KIND = PeerChannel.FIRST_KIND + 6;

    private SameHostRecord() {}
}
