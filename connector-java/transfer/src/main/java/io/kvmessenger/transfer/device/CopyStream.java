package io.kvmessenger.transfer.device;

/**
 * Copies that a device does on a stream of the messenger's own, in no order with what an engine has queued; nothing here waits, but
 * {@link #close}.
 *
 * <p>One thread, which belongs to the messenger. Copies between two marks have no order among them; those before a mark are done
 * before those behind it begin. Any call may throw a {@link DeviceFault}: then nothing more is taken, {@link #isDone} tells nothing
 * any more, and only {@link #close} proves that none of its copies runs. It keeps no memory alive.
 */
public interface CopyStream extends AutoCloseable {
    /** From a device into host memory, which is page-locked: copies of other host memory make the caller wait. */
    void toHost(long hostAddress, long deviceAddress, long lengthBytes);

    /** From host memory, which is page-locked, to a device. */
    void fromHost(long deviceAddress, long hostAddress, long lengthBytes);

    /** From device memory to device memory, which may be another process's or another device's. */
    void onDevice(long targetAddress, long sourceAddress, long lengthBytes);

    /** Closes the copies so far: the mark is reached when all of them are done. Returns its serial, which grows by one from 1. */
    long mark();

    /** Whether the mark of this serial has been reached: what was copied before it may be read, and its source reused. */
    boolean isDone(long serial);

    /** Waits until no copy of it runs, so that memory may be given back. */
    @Override
    void close();
}
