package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.path.Pause;
import io.kvmessenger.transfer.spi.OutboundPaths;
import java.lang.foreign.MemorySegment;

/**
 * The place of one path to a peer, between one of this engine's devices and one of the peer's: opened, used, lost, and
 * opened again after a pause.
 *
 * <p>Worker only. Each path has its own serial number; records about earlier ones are ignored.
 */
final class VerbsLane implements VerbsSendPath.Events {
    /** Pause between a loss and the next attempt; doubled until a path opens. */
    static final long REST_MIN_NS = 1_000_000_000L;

    static final long REST_MAX_NS = 16_000_000_000L;

    interface Owner {
        /** Sends a record, if there is room for it now. */
        boolean report(int kind, MemorySegment payload);

        void drain(long nowNs);

        void onOpened(VerbsSendPath path);

        void onSent(long postId);

        /** A path could not be opened; another attempt follows. */
        void onUnopened(String detail);

        /** A path has ended, and for each post it is known whether it arrived. */
        void onSettled(VerbsSendPath path, String fault);

        void onLost(TransferFault why, String detail);
    }

    private final Nic nic;
    private final int network;
    private final Owner owner;
    private PathName name;
    private VerbsSendPath path;
    private final Pause pause = new Pause(REST_MIN_NS, REST_MAX_NS);
    private long nowNs;
    private boolean tried;
    /** The notice that the last path is not needed any more is still to be sent. */
    private boolean owesClose;

    VerbsLane(Nic nic, int network, Owner owner) {
        this.nic = nic;
        this.network = network;
        this.owner = owner;
        name = new PathName(network, 0);
    }

    /** Requests a path, which must be ready by the limit. */
    void open(long now, long limitNs) {
        nowNs = now;
        tried = true;
        try {
            path = new VerbsSendPath(nic, network, this, limitNs);
        } catch (IllegalStateException e) {
            pause.begin(nowNs);
            owner.onUnopened(e.getMessage());
        }
    }

    boolean isOpen() {
        return path != null && path.isOpen();
    }

    boolean isResting() {
        return tried && path == null;
    }

    /** Limits the time of an attempt in progress. */
    void limitOpening(long limitNs) {
        if (path != null) {
            path.limitOpening(limitNs);
        }
    }

    /** Handles a target's record; one about a path that has ended is late and ignored. */
    void onRecord(PathName about, int kind, MemorySegment body, String refusal) {
        if (path == null || !about.equals(name)) {
            return;
        }
        if (kind == VerbsRecord.PATH_REFUSED && !path.isOpen()) {
            close();
            onUnended(refusal);
        } else {
            path.onRecord(kind, body);
        }
    }

    /** @param limitNs when an attempt that begins now must be ready */
    int doWork(long now, long limitNs) {
        nowNs = now;
        if (owesClose) {
            owesClose = !owner.report(VerbsRecord.PATH_CLOSED, name.with(MemorySegment.NULL));
            if (owesClose) {
                return OutboundPaths.LOOK_SOON;
            }
            nextName();
        }
        if (path == null && pause.isOver(now)) {
            open(now, limitNs);
        }
        return path == null ? 0 : path.doWork(now);
    }

    private void nextName() {
        name = new PathName(network, name.serial() + 1);
    }

    @Override
    public boolean report(int kind, MemorySegment body) {
        return owner.report(kind, name.with(body));
    }

    @Override
    public void drain(long now) {
        owner.drain(now);
    }

    @Override
    public void onOpened() {
        pause.onSuccess();
        owner.onOpened(path);
    }

    @Override
    public void onSent(long postId) {
        owner.onSent(postId);
    }

    @Override
    public void onUnopened(String detail) {
        owesClose = true;
        onUnended(detail);
    }

    private void onUnended(String detail) {
        path = null;
        if (!owesClose) {
            nextName();
        }
        pause.begin(nowNs);
        owner.onUnopened(detail);
    }

    @Override
    public void onSettled(String fault) {
        VerbsSendPath gone = path;
        path = null;
        nextName();
        pause.begin(nowNs);
        owner.onSettled(gone, fault);
    }

    @Override
    public void onLost(TransferFault why, String detail) {
        owner.onLost(why, detail);
    }

    void close() {
        if (path != null) {
            path.close();
        }
    }

    /** As {@link OutboundPaths#mayStillRead}, of the path that was the last. */
    boolean mayStillRead() {
        return path != null && path.mayStillRead();
    }
}
