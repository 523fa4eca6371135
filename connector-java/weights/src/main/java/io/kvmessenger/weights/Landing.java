package io.kvmessenger.weights;

import io.kvmessenger.messenger.session.ProtocolState;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;

/**
 * The memory of a host in which versions land, and the update that it is for. It is given to another update only after
 * proof that nothing of the one before can land: all of it was counted, or its admission is closed.
 *
 * <p>Owned by the messenger's thread. It sends no frame and ends no session: {@link WeightReceiver} does.
 */
final class Landing {
    /** Computed in one duty cycle, as page checksums are. */
    private static final int PIECES_PER_CYCLE = 8;

    private static final long UNKNOWN = -1;

    private final Region region;
    private final LandingParts parts;
    private final TransferEngine transfer;
    private LandingState state = LandingState.EMPTY;
    /** Whose bytes these are, or will be; null while it is empty. */
    private Update update;
    /** Open while it is grounded or quarantined; null else. */
    private ImmWindow window;
    /** Of what has landed; null unless it is being compared. */
    private ContentDigest digest;
    /** How many writes the sender that gave up has posted; {@link #UNKNOWN} while it has not said so. */
    private long postedCount = UNKNOWN;
    /** Number of windows opened, by which their completions are told apart. */
    private long windowCount;

    Landing(Region region, LandingParts parts, TransferEngine transfer) {
        this.region = region;
        this.parts = parts;
        this.transfer = transfer;
    }

    LandingState state() {
        return state;
    }

    /** Null while it is empty. */
    Update update() {
        return update;
    }

    Region region() {
        return region;
    }

    long writeCount() {
        return parts.writeCount(region.descriptor().lengthBytes());
    }

    /** Gives it to an update. Returns the imm of its window, or null if the engine has none left. */
    Integer ground(Update next) {
        ImmWindow opened = transfer.openWindow(
                next.sender().admission, LandingParts.area(region.descriptor()), writeCount(), windowCount + 1);
        if (opened == null) {
            return null;
        }
        become(LandingState.GROUND);
        windowCount++;
        update = next;
        window = opened;
        postedCount = UNKNOWN;
        return opened.imm();
    }

    /** Whether this is the completion of the open window. */
    boolean awaits(long windowCookie) {
        return state == LandingState.GROUND && windowCookie == windowCount;
    }

    /** By which the open window's completion is known. */
    long windowCookie() {
        return windowCount;
    }

    /** 1 while something can land, or might. */
    int windowsOpen() {
        return window == null ? 0 : 1;
    }

    boolean hasAll() {
        return window != null && window.arrivedWeight() == window.expectedWeight();
    }

    /** Everything has landed and been counted: no write of this update follows. */
    void onFilled() {
        become(LandingState.COMPARING);
        closeWindow();
        digest = new ContentDigest(region.hostBytes(), parts.pieceBytes());
    }

    /** Goes on comparing. Returns the amount of work done. */
    int compare() {
        return state == LandingState.COMPARING ? digest.advance(PIECES_PER_CYCLE) : 0;
    }

    boolean compared() {
        return state == LandingState.COMPARING && digest.finished();
    }

    /** Ends the comparison: whether the bytes are those that were announced. If not, they mean nothing. */
    boolean judge() {
        boolean same = digest.value().equals(update.contentDigest());
        digest = null;
        become(same ? LandingState.LANDED : LandingState.EMPTY);
        if (!same) {
            update = null;
        }
        return same;
    }

    void onApplying() {
        become(LandingState.APPLYING);
    }

    void onApplied() {
        become(LandingState.HELD);
    }

    /** The engine has not begun to load, and will not: the update has ended. */
    void onNotApplied() {
        become(LandingState.EMPTY);
        update = null;
    }

    /** The sender is gone: what it posted may land until its admission is closed. */
    void quarantine() {
        become(LandingState.QUARANTINED);
    }

    /** The sender has given up, having posted so many writes. */
    void quarantine(long posted) {
        quarantine();
        postedCount = posted;
    }

    /** Whether all that was posted has been counted. */
    boolean provenByCount() {
        return state == LandingState.QUARANTINED && window.arrivedWeight() == postedCount;
    }

    /** There is proof that nothing of the quarantined update lands any more. */
    void release() {
        become(LandingState.EMPTY);
        closeWindow();
        update = null;
    }

    private void closeWindow() {
        window.close(true);
        window = null;
    }

    private void become(LandingState next) {
        state = ProtocolState.change(state, next);
    }
}
