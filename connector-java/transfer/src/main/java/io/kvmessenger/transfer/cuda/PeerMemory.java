package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.ImportedMemory;
import io.kvmessenger.transfer.device.PinnedMemory;
import io.kvmessenger.transfer.samehost.MappedFile;

/** A region of a peer, as this process sees it. Worker only. */
sealed interface PeerMemory {
    long lengthBytes();

    default boolean isComplete() {
        return true;
    }

    /** No copy to it is queued any more. */
    void close();

    record OnDevice(ImportedMemory memory) implements PeerMemory {
        @Override
        public long lengthBytes() {
            return memory.lengthBytes();
        }

        @Override
        public boolean isComplete() {
            return memory.isComplete();
        }

        @Override
        public void close() {
            memory.close();
        }
    }

    /** Host memory, page-locked when a device first copies to it. */
    final class InFile implements PeerMemory {
        private final MappedFile file;
        private PinnedMemory pinned;
        private boolean tried;

        InFile(MappedFile file) {
            this.file = file;
        }

        MappedFile file() {
            return file;
        }

        /** Page-locks the memory. If that fails it is copied to all the same, but the driver blocks meanwhile. */
        void pin(DeviceDriver driver, int copier) {
            if (tried) {
                return;
            }
            tried = true;
            try {
                pinned = PinnedMemory.of(driver, copier, file.memory());
            } catch (DeviceFault e) {
                pinned = null;
            }
        }

        @Override
        public long lengthBytes() {
            return file.memory().byteSize();
        }

        @Override
        public void close() {
            try {
                if (pinned != null) {
                    pinned.close();
                }
            } finally {
                file.close();
            }
        }
    }
}
