package io.kvmessenger.transfer.device;

/**
 * Copies by a device on a stream owned by the messenger, unordered relative to the engine's work; only {@link #close}
 * blocks.
 *
 * <p>One thread, which belongs to the messenger. Copies between two marks are unordered; copies before a mark are done
 * before those after it begin. Any call may throw a {@link DeviceFault}: then nothing more is accepted, {@link #isDone}
 * has no meaning any more, and only {@link #close} proves that none of its copies runs. It keeps no memory alive.
 */
public interface CopyStream extends AutoCloseable {
    /** From a device to host memory, which should be page-locked: copies of other host memory block the caller. */
    void toHost(long hostAddress, long deviceAddress, long lengthBytes);

    /** From host memory, which should be page-locked, to a device. */
    void fromHost(long deviceAddress, long hostAddress, long lengthBytes);

    /** Between device memories, which may belong to another process or to two devices. */
    void onDevice(long targetAddress, long sourceAddress, long lengthBytes);

    /** Sets a mark, reached when all earlier copies are done. Returns its serial number, which counts from 1. */
    long mark();

    /** Whether the mark of this serial number was reached: earlier copies may be read, and their sources reused. */
    boolean isDone(long serial);

    /** Waits until none of its copies runs, so that memory may be released. */
    @Override
    void close();
}
