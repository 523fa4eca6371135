package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TrafficClass;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.nio.charset.StandardCharsets;
import java.util.UUID;

/**
 * What each worker has for its links, where all workers that share a link can see it: those of one engine, and through a
 * shared file those of other processes.
 *
 * <p>A row is written by one worker and read by any, without a lock and without waiting: its numbers are hints, each
 * valid by itself, and one that is out of date counts for nothing. Any thread. It decides nothing.
 */
public final class LinkBoard {
    static final int ROWS = 1 << 8;
    static final int ROW_BYTES = 128;
    static final long LENGTH_BYTES = (long) ROWS * ROW_BYTES;
    static final int NO_ROW = -1;

    private static final VarHandle LONG = ValueLayout.JAVA_LONG.varHandle();
    private static final long OWNER = 0;
    private static final long LINK = 8;
    private static final long MOVED_BYTES = 16;
    /** By class, as is the next. */
    private static final long QUEUED_BYTES = 24;

    private static final long SEEN_NS = QUEUED_BYTES + (long) Long.BYTES * TrafficClass.COUNT;

    /** The memory that the rows are in, and the processes that it is shared by. */
    interface Backing {
        /** Names this process; not 0, and no later process has the same. */
        long own();

        /** Whether the process still exists: the rows of one that has ended may be taken. */
        boolean isAlive(long owner);

        /** Whether all rows are still in memory: a file may have been cut. */
        boolean isWhole();

        void close();
    }

    private final MemorySegment rows;
    private final Backing backing;
    private final String scope;

    /**
     * A board in memory that others may share.
     *
     * @param scope tells the links of this process from others of the same name
     */
    LinkBoard(MemorySegment rows, Backing backing, String scope) {
        this.rows = rows;
        this.backing = backing;
        this.scope = scope;
    }

    /** The number of a link. */
    long numberOf(String name) {
        String whole = scope + ' ' + name;
        return UUID.nameUUIDFromBytes(whole.getBytes(StandardCharsets.UTF_8)).getMostSignificantBits();
    }

    /** For one engine alone. */
    static LinkBoard ofEngine() {
        return new LinkBoard(
                Arena.ofAuto().allocate(LENGTH_BYTES, ROW_BYTES),
                new Backing() {
                    @Override
                    public long own() {
                        return 1;
                    }

                    @Override
                    public boolean isAlive(long owner) {
                        return true;
                    }

                    @Override
                    public boolean isWhole() {
                        return true;
                    }

                    @Override
                    public void close() {}
                },
                "");
    }

    /** Whether rows may be read and written; before each use of them, since they may be in a file. */
    boolean isWhole() {
        return backing.isWhole();
    }

    void close() {
        backing.close();
    }

    /** Takes a row for a link, or {@link #NO_ROW} when there is none. */
    int take(long link) {
        for (int row = 0; row < ROWS; row++) {
            long owner = get(row, OWNER);
            if ((owner == 0 || !backing.isAlive(owner))
                    && LONG.compareAndSet(rows, at(row, OWNER), owner, backing.own())) {
                for (int at = 0; at < TrafficClass.COUNT; at++) {
                    setQueued(row, at, 0);
                }
                setMoved(row, 0);
                set(row, LINK, link);
                return row;
            }
        }
        return NO_ROW;
    }

    /** Whether the row is still this process's: a process that cannot see this one may have taken it. */
    boolean isOwn(int row) {
        return get(row, OWNER) == backing.own();
    }

    private static long at(int row, long field) {
        return (long) row * ROW_BYTES + field;
    }

    private long get(int row, long field) {
        return (long) LONG.getOpaque(rows, at(row, field));
    }

    private void set(int row, long field, long value) {
        LONG.setOpaque(rows, at(row, field), value);
    }

    void release(int row) {
        set(row, OWNER, 0);
    }

    /** The owner's: bytes queued and not ended, of a class. */
    void setQueued(int row, int trafficClass, long lengthBytes) {
        set(row, QUEUED_BYTES + (long) Long.BYTES * trafficClass, lengthBytes);
    }

    /** The owner's: bytes ended since the row was taken, of all classes. */
    void setMoved(int row, long lengthBytes) {
        set(row, MOVED_BYTES, lengthBytes);
    }

    /** The owner's: writes of the class have just been queued or have ended. */
    void setSeen(int row, int trafficClass, long nowNs) {
        set(row, SEEN_NS + (long) Long.BYTES * trafficClass, nowNs);
    }

    boolean isOf(int row, long link) {
        return get(row, LINK) == link && get(row, OWNER) != 0;
    }

    long queuedBytes(int row, int trafficClass) {
        return get(row, QUEUED_BYTES + (long) Long.BYTES * trafficClass);
    }

    long movedBytes(int row) {
        return get(row, MOVED_BYTES);
    }

    /** When writes of the class were last queued or ended. */
    long seenNs(int row, int trafficClass) {
        return get(row, SEEN_NS + (long) Long.BYTES * trafficClass);
    }
}
