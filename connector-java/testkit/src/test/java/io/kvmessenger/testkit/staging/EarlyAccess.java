package io.kvmessenger.testkit.staging;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DmaBuf;
import io.kvmessenger.transfer.device.NicWrites;
import java.lang.foreign.MemorySegment;

/** Mutant: every mark is reached when it is set, although the copies before it may run later. */
record EarlyAccess(DeviceAccess sound) implements DeviceAccess {
    @Override
    public String refusal(int ordinal) {
        return sound.refusal(ordinal);
    }

    @Override
    public CopyStream openStream(int ordinal) {
        return new EarlyStream(sound.openStream(ordinal));
    }

    @Override
    public MemorySegment pin(long lengthBytes) {
        return sound.pin(lengthBytes);
    }

    @Override
    public DmaBuf exportDmaBuf(Memory.Device memory) {
        return sound.exportDmaBuf(memory);
    }

    @Override
    public NicWrites nicWrites(int ordinal) {
        return sound.nicWrites(ordinal);
    }

    @Override
    public void close() {
        sound.close();
    }

    private record EarlyStream(CopyStream stream) implements CopyStream {
        @Override
        public void toHost(long hostAddress, long deviceAddress, long lengthBytes) {
            stream.toHost(hostAddress, deviceAddress, lengthBytes);
        }

        @Override
        public void fromHost(long deviceAddress, long hostAddress, long lengthBytes) {
            stream.fromHost(deviceAddress, hostAddress, lengthBytes);
        }

        @Override
        public void onDevice(long targetAddress, long sourceAddress, long lengthBytes) {
            stream.onDevice(targetAddress, sourceAddress, lengthBytes);
        }

        @Override
        public long mark() {
            return stream.mark();
        }

        @Override
        public boolean isDone(long serial) {
            return true;
        }

        @Override
        public void close() {
            stream.close();
        }
    }
}
