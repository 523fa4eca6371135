package io.kvmessenger.transfer.samehost;

import io.kvmessenger.transfer.spi.PeerChannel;

/** Kinds of records between the two ends of memory that is handed over within a host. */
public final class SameHostRecord {
    /** Target: the ring and what wakes it, as descriptors. */
    public static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Writer: the ring is mapped. */
    public static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Writer: a {@link RegionRecord} that names one. */
    public static final int REGION_WANTED = PeerChannel.FIRST_KIND + 2;

    /** Target: the {@link RegionRecord}, with its descriptor. */
    public static final int REGION = PeerChannel.FIRST_KIND + 3;

    /** Target: a {@link RegionRecord} that was not asked for, with its descriptor, so that it can be mapped before it is needed. */
    public static final int REGION_OFFERED = PeerChannel.FIRST_KIND + 4;

    /** Target, once: what was registered when the writer became ready has been offered. */
    public static final int ALL_OFFERED = PeerChannel.FIRST_KIND + 5;

    /** The first kind that is a transport's own. */
    public static final int NEXT_KIND = PeerChannel.FIRST_KIND + 6;

    private SameHostRecord() {}
}
