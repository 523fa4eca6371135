package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DeviceFault;
import java.util.List;

/**
 * The copies of one worker to or from one device: a stream, and another one after a fault.
 *
 * <p>Worker only. A stream that failed is closed at once, which waits for what it has begun; then all users are told, and what they
 * had on it is neither done nor running. Marks grow over all streams.
 */
final class CopyLane {
    /** What uses it. */
    interface User {
        /** Of what it has on the lane that was not seen done, nothing is copied any more, and how much was is not known. */
        void onCopiesFailed(CopyLane lane, DeviceFault fault);
    }

    private final DeviceAccess access;
    private final int ordinal;
    private final List<User> users;
    private CopyStream stream;
    /** What the stream's own marks are counted from. */
    private long firstMark;

    private long lastMark;

    CopyLane(DeviceAccess access, int ordinal, List<User> users) {
        this.access = access;
        this.ordinal = ordinal;
        this.users = users;
    }

    /** Returns whether it was queued; if not, all users have been told. */
    boolean toHost(long hostAddress, long deviceAddress, long lengthBytes) {
        try {
            stream().toHost(hostAddress, deviceAddress, lengthBytes);
            return true;
        } catch (DeviceFault e) {
            fail(e);
            return false;
        }
    }

    /** Returns whether it was queued; if not, all users have been told. */
    boolean fromHost(long deviceAddress, long hostAddress, long lengthBytes) {
        try {
            stream().fromHost(deviceAddress, hostAddress, lengthBytes);
            return true;
        } catch (DeviceFault e) {
            fail(e);
            return false;
        }
    }

    private CopyStream stream() {
        if (stream == null) {
            stream = access.openStream(ordinal);
        }
        return stream;
    }

    /** The mark that {@link #mark} sets next. */
    long nextMark() {
        return lastMark + 1;
    }

    /** Marks what is queued; returns whether that went well. */
    boolean mark() {
        try {
            lastMark = firstMark + stream().mark();
            return true;
        } catch (DeviceFault e) {
            fail(e);
            return false;
        }
    }

    /** Whether what was queued before the mark is done. False when it is not, and when it has failed: then all users have been told. */
    boolean isDone(long mark) {
        if (stream == null || mark <= firstMark || mark > lastMark) {
            return false;
        }
        try {
            return stream.isDone(mark - firstMark);
        } catch (DeviceFault e) {
            fail(e);
            return false;
        }
    }

    private void fail(DeviceFault fault) {
        end();
        for (User user : List.copyOf(users)) {
            user.onCopiesFailed(this, fault);
        }
    }

    /** Waits for what is being copied. */
    private void end() {
        CopyStream gone = stream;
        stream = null;
        // A mark that was promised and never set is not taken for one of the next stream's.
        firstMark = lastMark + 1;
        lastMark = firstMark;
        if (gone != null) {
            gone.close();
        }
    }

    /** Waits for what is being copied, and copies nothing more. */
    void close(DeviceFault reason) {
        fail(reason);
    }
}
