package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.LibFabric;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * An endpoint for one peer, with a completion queue of its own.
 *
 * <p>Worker only. Once it is closed nothing of the peer lands through it any more, and no source is read: no other
 * libfabric call guarantees that for every provider.
 */
final class FabricEndpoint {
    /** {@link #read} has found a failed operation. */
    static final int FAILED = -1;

    private static final int ENTRIES = 64;
    /** Attempts to close, for a provider that is still busy at first. */
    private static final int CLOSE_TRIES = 8;

    private static final long NONE = 0;

    private final OpenFabric fabric;
    private final LibFabric library;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment opened = arena.allocate(JAVA_LONG);
    private final MemorySegment entries = arena.allocate(ENTRIES * FabricLayout.CQ_ENTRY_SIZE_BYTES, 8);
    private final MemorySegment error = arena.allocate(FabricLayout.CQ_ERROR_SIZE_BYTES + FabricLayout.SLACK_BYTES, 8);
    private long queue;
    private long vector;
    private long endpoint;
    private long target;

    /**
     * @param queueEntries capacity of the completion queue
     * @throws IllegalStateException when the provider refuses
     */
    FabricEndpoint(OpenFabric fabric, int queueEntries) {
        this.fabric = fabric;
        library = fabric.library();
        try {
            openQueue(queueEntries);
            openVector();
            fabric.require(
                    "fi_endpoint",
                    library.fi_endpoint(fabric.domain(), fabric.info().segment(), opened));
            endpoint = opened.get(JAVA_LONG, 0);
            fabric.require("fi_ep_bind", library.fi_ep_bind(endpoint, vector, 0));
            long directions = FabricApi.FI_TRANSMIT | FabricApi.FI_RECV;
            fabric.require("fi_ep_bind", library.fi_ep_bind(endpoint, queue, directions));
            fabric.require("fi_enable", library.fi_enable(endpoint));
        } catch (IllegalStateException e) {
            close();
            throw e;
        }
    }

    private void openQueue(int queueEntries) {
        MemorySegment attributes = arena.allocate(FabricLayout.CQ_ATTR_SIZE_BYTES + FabricLayout.SLACK_BYTES, 8);
        attributes.set(JAVA_LONG, FabricLayout.CQ_ATTR_SIZE, queueEntries);
        attributes.set(JAVA_INT, FabricLayout.CQ_ATTR_FORMAT, FabricApi.FI_CQ_FORMAT_DATA);
        attributes.set(JAVA_INT, FabricLayout.CQ_ATTR_WAIT_OBJ, FabricApi.FI_WAIT_NONE);
        fabric.require("fi_cq_open", library.fi_cq_open(fabric.domain(), attributes, opened));
        queue = opened.get(JAVA_LONG, 0);
    }

    private void openVector() {
        MemorySegment attributes = arena.allocate(FabricLayout.AV_ATTR_SIZE_BYTES + FabricLayout.SLACK_BYTES, 8);
        attributes.set(JAVA_INT, FabricLayout.AV_ATTR_TYPE, FabricApi.FI_AV_TABLE);
        attributes.set(JAVA_LONG, FabricLayout.AV_ATTR_COUNT, 1);
        fabric.require("fi_av_open", library.fi_av_open(fabric.domain(), attributes, opened));
        vector = opened.get(JAVA_LONG, 0);
    }

    /** @throws IllegalStateException when the provider does not return it */
    FabricName name() {
        MemorySegment address = arena.allocate(FabricName.ADDRESS_MAX_BYTES, 8);
        MemorySegment lengthBytes = arena.allocate(JAVA_LONG);
        lengthBytes.set(JAVA_LONG, 0, FabricName.ADDRESS_MAX_BYTES);
        fabric.require("fi_getname", library.fi_getname(endpoint, address, lengthBytes));
        byte[] given = address.asSlice(0, lengthBytes.get(JAVA_LONG, 0)).toArray(JAVA_BYTE);
        return new FabricName(fabric.info().protocol(), fabric.info().addressFormat(), given);
    }

    /**
     * Sets the peer's endpoint as the target of writes.
     *
     * @throws IllegalStateException when the provider does not accept such an address
     */
    void aimAt(FabricName peer) {
        // Providers read as many bytes as an address of theirs has, whatever the peer sent.
        MemorySegment address = arena.allocate(FabricName.ADDRESS_MAX_BYTES, 8);
        address.copyFrom(MemorySegment.ofArray(peer.address()));
        int inserted = library.fi_av_insert(vector, address, opened);
        fabric.require("fi_av_insert", inserted);
        if (inserted != 1) {
            throw new IllegalStateException(
                    "libfabric's " + fabric.info().provider() + " takes no address of the peer's");
        }
        target = opened.get(JAVA_LONG, 0);
    }

    /** Begins a write; returns 0, or {@code -errno}: {@code -EAGAIN} when there is no room now. */
    long write(long source, long lengthBytes, long descriptor, int imm, long to, long key, long context) {
        return library.fi_writedata(
                endpoint, source, lengthBytes, descriptor, Integer.toUnsignedLong(imm), target, to, key, context);
    }

    /** Reads completions, which also lets the provider make progress; returns their number, or {@link #FAILED}. */
    int read() {
        long count = library.fi_cq_read(queue, entries, ENTRIES);
        if (count == -Errno.EAGAIN) {
            return 0;
        }
        return count < 0 ? FAILED : (int) count;
    }

    /** Of the completions last read: whether this one is a write of the peer that has arrived. */
    boolean isArrival(int i) {
        return (entry(i, FabricLayout.CQ_ENTRY_FLAGS) & FabricApi.FI_REMOTE_CQ_DATA) != 0;
    }

    /** The immediate of an arrival; the provider may deliver more bits than were sent. */
    int immediate(int i) {
        return (int) entry(i, FabricLayout.CQ_ENTRY_DATA);
    }

    /** Context of the completed write of this side. */
    long context(int i) {
        return entry(i, FabricLayout.CQ_ENTRY_CONTEXT);
    }

    private long entry(int i, long offset) {
        return entries.get(JAVA_LONG, i * FabricLayout.CQ_ENTRY_SIZE_BYTES + offset);
    }

    /** Removes the failed operation from the queue; returns why it failed. */
    String describeFailure() {
        // A provider takes a pointer and a length that it finds there for a buffer to fill: those of the last call.
        error.fill((byte) 0);
        if (library.fi_cq_readerr(queue, error) != 1) {
            return "the queue of completions cannot be read";
        }
        String own = library.fi_cq_strerror(queue, error);
        String common = fabric.describe(-error.get(JAVA_INT, FabricLayout.CQ_ERROR_ERR));
        return own.isEmpty() || own.equals(common) ? common : common + " (" + own + ")";
    }

    boolean isOpen() {
        return endpoint != NONE;
    }

    /** @throws IllegalStateException when the provider refuses: then the peer may still write */
    void close() {
        if (endpoint != NONE) {
            closeEndpoint();
        }
        release();
    }

    private void closeEndpoint() {
        int result = library.fi_close(endpoint);
        for (int tries = 1; result < 0 && tries < CLOSE_TRIES; tries++) {
            library.fi_cq_read(queue, entries, ENTRIES); // lets the provider make progress
            result = library.fi_close(endpoint);
        }
        fabric.require("fi_close", result);
        endpoint = NONE;
    }

    private void release() {
        if (queue != NONE) {
            library.fi_close(queue);
            queue = NONE;
        }
        if (vector != NONE) {
            library.fi_close(vector);
            vector = NONE;
        }
        arena.close();
    }
}
