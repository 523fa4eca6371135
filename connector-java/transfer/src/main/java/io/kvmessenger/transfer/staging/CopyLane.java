package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DeviceFault;
import java.util.List;

/**
 * The copies of one worker to or from one device: a stream, replaced by a new one after a fault.
 *
 * <p>Worker only. A stream that failed is closed at once, which waits for the copies it has begun; then all users are
 * notified, and their copies on it are neither done nor running. Marks increase across streams.
 */
final class CopyLane {
    /** A holder of pending copies, notified when they fail. */
    interface User {
        /** None of its copies that were not seen done is running any more; how much they copied is unknown. */
        void onCopiesFailed(CopyLane lane, DeviceFault fault);
    }

    private final DeviceAccess access;
    private final int ordinal;
    private final List<User> users;
    private CopyStream stream;
    /** Offset between the stream's own marks and the lane's. */
    private long firstMark;

    private long lastMark;

    CopyLane(DeviceAccess access, int ordinal, List<User> users) {
        this.access = access;
        this.ordinal = ordinal;
        this.users = users;
    }

    /** Returns whether the copy was queued; if not, all users have been notified. */
    boolean toHost(long hostAddress, long deviceAddress, long lengthBytes) {
        try {
            stream().toHost(hostAddress, deviceAddress, lengthBytes);
            return true;
        } catch (DeviceFault e) {
            fail(e);
            return false;
        }
    }

    /** Returns whether the copy was queued; if not, all users have been notified. */
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

    long nextMark() {
        return lastMark + 1;
    }

    /** Marks what is queued; returns false after a fault. */
    boolean mark() {
        try {
            lastMark = firstMark + stream().mark();
            return true;
        } catch (DeviceFault e) {
            fail(e);
            return false;
        }
    }

    /** Whether everything queued before the mark is done. False after a fault, which has been reported to all users. */
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

    /** Waits for copies in progress. */
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

    /** Waits for copies in progress, and copies nothing more. */
    void close(DeviceFault reason) {
        fail(reason);
    }
}
