package io.kvmessenger.transfer.engine;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;

import java.lang.foreign.MemorySegment;

/**
 * The result of a {@link ReadAsk}, as one control record. A value.
 *
 * @param imm the reader's window
 * @param part index of the part within the read
 */
record ReadAnswer(int imm, int part, int outcome) {
    /** All its pages were written. */
    static final int SENT = 0;
    /** No page was or will be written: there is no such window of this reader, or it is closed. */
    static final int NO_WINDOW = 1;
    /** No page was or will be written: one of them leaves the window. */
    static final int OUTSIDE = 2;
    /**
     * No page was or will be written: they are longer than what the owner writes at once. Only for readers that {@link
     * ReadAsk#hearsTooLong hear} it.
     */
    static final int TOO_LONG = 3;

    private static final int LENGTH_BYTES = 12;

    MemorySegment encode() {
        MemorySegment out = MemorySegment.ofArray(new byte[LENGTH_BYTES]);
        out.set(INT, 0, imm);
        out.set(INT, 4, part);
        out.set(INT, 8, outcome);
        return out;
    }

    /** Decodes a record; null when malformed. */
    static ReadAnswer parse(MemorySegment in) {
        if (in.byteSize() != LENGTH_BYTES || in.get(INT, 4) < 0 || in.get(INT, 8) < SENT || in.get(INT, 8) > TOO_LONG) {
            return null;
        }
        // An owner of the previous version returns the part as it was asked for, with its flag.
        return new ReadAnswer(in.get(INT, 0), in.get(INT, 4) & ~ReadAsk.HEARS_TOO_LONG, in.get(INT, 8));
    }
}
