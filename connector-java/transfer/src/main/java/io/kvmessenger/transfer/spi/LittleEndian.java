package io.kvmessenger.transfer.spi;

import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;

/** The numbers in records between engines, at any offset. */
public final class LittleEndian {
    public static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    public static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    private LittleEndian() {}
}
