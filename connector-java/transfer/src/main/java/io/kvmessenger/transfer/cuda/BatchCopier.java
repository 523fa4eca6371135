package io.kvmessenger.transfer.cuda;

import io.kvmessenger.foreign.StreamingCopy;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceCopyStream;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.samehost.RunCopier;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.Arrays;
import java.util.function.IntSupplier;

/**
 * Copies the runs of batches into one peer's memory: by the source's device, or by the CPU between host memories.
 *
 * <p>Worker only. It has one stream per source device.
 */
final class BatchCopier {
    private final DeviceDriver driver;
    private final PinnedSources pinned;
    private final IntSupplier copier;
    private final RunCopier hostCopier = new RunCopier(StreamingCopy.ofThisProcess());
    /** By ordinal; null for a device that has copied nothing. */
    private CopyQueue[] queues = new CopyQueue[0];

    BatchCopier(DeviceDriver driver, PinnedSources pinned, IntSupplier copier) {
        this.driver = driver;
        this.pinned = pinned;
        this.copier = copier;
    }

    /**
     * The queue for the copies of a batch; null when the CPU copies.
     *
     * @throws io.kvmessenger.transfer.device.DeviceFault when the device provides no stream
     */
    CopyQueue queueFor(WriteBatch batch, PeerMemory target) {
        return switch (batch.sourceRegion().memory()) {
            case Memory.Device device -> queue(device.ordinal());
            case Memory.Host host -> target instanceof PeerMemory.OnDevice ? queue(copier.getAsInt()) : null;
        };
    }

    private CopyQueue queue(int ordinal) {
        if (ordinal >= queues.length) {
            queues = Arrays.copyOf(queues, ordinal + 1);
        }
        if (queues[ordinal] == null) {
            queues[ordinal] = new CopyQueue(DeviceCopyStream.open(driver, ordinal));
        }
        return queues[ordinal];
    }

    /** Copies, or queues on the stream of {@link #queueFor}; false when a page would be outside the target. */
    boolean copy(WriteBatch batch, PeerMemory target) {
        return switch (target) {
            case PeerMemory.OnDevice device -> copyToDevice(batch, device);
            case PeerMemory.InFile file -> copyToFile(batch, file);
        };
    }

    private boolean copyToDevice(WriteBatch batch, PeerMemory.OnDevice target) {
        Memory source = batch.sourceRegion().memory();
        int ordinal = switch (source) {
            case Memory.Device device -> device.ordinal();
            case Memory.Host host -> {
                pinned.pin(batch.sourceRegion(), host);
                yield copier.getAsInt();
            }
        };
        CopyStream stream = queue(ordinal).stream();
        long targetAddress = target.memory().addressFor(ordinal);
        int runLength;
        for (int i = 0; i < batch.pageCount(); i += runLength) {
            runLength = batch.runLength(i);
            long runBytes = runLength * batch.pageBytes();
            if (isOutside(batch.targetOffsetBytes(i), runBytes, target)) {
                return false;
            }
            long from = source.address() + batch.sourceOffsetBytes(i);
            long to = targetAddress + batch.targetOffsetBytes(i);
            if (source instanceof Memory.Device) {
                stream.onDevice(to, from, runBytes);
            } else {
                stream.fromHost(to, from, runBytes);
            }
        }
        return true;
    }

    private boolean copyToFile(WriteBatch batch, PeerMemory.InFile target) {
        CopyStream stream = null;
        Memory source = batch.sourceRegion().memory();
        if (source instanceof Memory.Device device) {
            target.pin(driver, device.ordinal());
            stream = queue(device.ordinal()).stream();
        }
        int runLength;
        for (int i = 0; i < batch.pageCount(); i += runLength) {
            runLength = batch.runLength(i);
            long runBytes = runLength * batch.pageBytes();
            long to = batch.targetOffsetBytes(i);
            if (isOutside(to, runBytes, target)) {
                hostCopier.drop();
                return false;
            }
            if (stream != null) {
                long from = source.address() + batch.sourceOffsetBytes(i);
                stream.toHost(target.file().memory().address() + to, from, runBytes);
            } else {
                target.file().mapAhead(to, runBytes);
                hostCopier.add(
                        batch.source(),
                        batch.sourceOffsetBytes(i),
                        target.file().memory(),
                        to,
                        runBytes);
            }
        }
        hostCopier.finish();
        return true;
    }

    private static boolean isOutside(long offsetBytes, long lengthBytes, PeerMemory target) {
        return offsetBytes < 0 || offsetBytes > target.lengthBytes() - lengthBytes;
    }

    /** Indexed by ordinal, with gaps. */
    CopyQueue[] queues() {
        return queues;
    }

    /** Whether copies are in progress, whose end no event reports. */
    boolean isBusy() {
        for (CopyQueue queue : queues) {
            if (queue != null && !queue.isEmpty()) {
                return true;
            }
        }
        return false;
    }

    /** Waits until no copy runs; unqueued copies are dropped. */
    void close() {
        for (CopyQueue queue : queues) {
            if (queue != null) {
                queue.close();
            }
        }
        queues = new CopyQueue[0];
    }
}
