package io.kvmessenger.transfer;

import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Moves bytes into other engines' registered memory and counts what arrives in ours.
 *
 * <p>Contract. No order is assumed between writes. An immediate is seen only after its payload is visible. Local
 * completion of a write means that its source may be reused; nothing may be concluded about the target. One slow or
 * dead peer never delays writes to others. Inbound progress depends on no caller, unless the engine was opened with
 * {@link ThreadingMode#CALLER}: then everything is done in {@link #poll} and {@link #await}, {@link #close} is for the thread that
 * polls as well, and the polling thread never stays away for long.
 *
 * <p>Threading: {@code submit}, {@code group}, {@code send}, {@code allow}, {@code register}, {@code admit}, {@code connect},
 * {@code openWindow}, {@code openForReading} and {@code read} may be called from any one thread at a time (the messenger's); {@link #poll} is called by that same thread and is the
 * only place where a {@link CompletionHandler} runs; so is {@link #await}. Workers never run user code.
 *
 * <p>It does not retry, does not know what a page means to an engine, and does not decide when a peer is dead: it
 * reports facts.
 */
public interface TransferEngine extends AutoCloseable {
    /** {@link #submit} took the request; its completion will be polled. */
    int ACCEPTED = 0;
    /** The queue to this peer is full: poll, then try again. Nothing was taken. */
    int BACK_PRESSURE = -1;
    /** The peer is gone, or was never reached; its loss has been or will be polled. Nothing was taken. */
    int PEER_LOST = -2;
    /** The write leaves its region or its window; nothing was taken, {@link #refusal()} names what was wrong. */
    int REFUSED = -3;

    /** How other engines reach this one: opaque bytes, at most {@link EngineAddress#LENGTH_MAX_BYTES}. */
    EngineAddress address();

    /** Of each transport that was asked for and that the machine does not have: in one line, why. */
    default List<String> unavailable() {
        return List.of();
    }

    /** How memory that was registered is reached, where that is worth a line in a log: one line each. */
    default List<String> notes() {
        return List.of();
    }

    /**
     * Makes memory a source of writes and, within windows, a target. The memory must outlive the region.
     *
     * @throws IllegalArgumentException when no transport of this engine reaches such memory
     */
    Region register(Memory memory);

    /**
     * Lets one peer open data paths to this engine. The admission's key travels over the (authenticated) control
     * channel; a data path without a live key is closed.
     */
    Admission admit(String peerName);

    /** Ends an admission: its data paths are torn down; when {@code onAdmissionClosed} is polled, none can write. */
    void revoke(Admission admission);

    /** Starts to open data paths to a peer; {@code onPeerReady} or {@code onPeerLost} follows. Never blocks. */
    Peer connect(EngineAddress address, byte[] admissionKey, String peerName);

    /** Ends the data paths to a peer; writes not yet completed complete as failed. */
    void disconnect(Peer peer);

    /**
     * Lets writes to a peer's window be submitted: the peer has told us where its window lies. Every page of every
     * later {@link #submit} is checked against what was allowed here, on every transport; on shared memory and RDMA,
     * where the target cannot look, this is the only check there is.
     *
     * @param imm the window's slot and generation, weight zero
     * @param area where writes that carry the imm may land, on the peer's regions
     * @return what requests for this window name
     */
    RemoteWindow allow(Peer peer, int imm, WindowArea area);

    /** Ends what {@link #allow} began: later submits are refused. Writes already accepted still complete. */
    void disallow(Peer peer, RemoteWindow window);

    /**
     * Submits writes. {@code cookie} comes back in exactly one completion when {@link #ACCEPTED} was returned. The
     * engine reads the request's arrays and source memory until that completion.
     *
     * @return {@link #ACCEPTED}, {@link #BACK_PRESSURE}, {@link #PEER_LOST} or {@link #REFUSED}
     */
    int submit(Peer peer, TransferRequest request, long cookie);

    /**
     * Names peers that are to be written to together, so that no submit looks them up. Costs nothing afterwards and needs no end.
     *
     * @param name for people
     * @param members live peers of this engine, each once, at least one
     * @throws IllegalArgumentException when they are not
     */
    PeerGroup group(String name, List<Peer> members);

    /**
     * Submits one write for each member of a group: to all that are not lost, or to none. {@code cookie} comes back in exactly one
     * completion, when the last part has ended. A part whose member is lost, before or afterwards, fails alone: {@link
     * CompletionHandler#onMemberFailed} names it, the others are written. While one member's queue is full there is {@link
     * #BACK_PRESSURE}: a member that may be slow, and that nothing must wait for, is left out of the group.
     *
     * @return as the other submit; {@link #PEER_LOST} only when this engine has ended
     */
    int submit(PeerGroup group, GroupRequest request, long cookie);

    /** Why the last {@link #submit} or {@link #read} was {@link #REFUSED}; one sentence. */
    String refusal();

    /** Sends a small message, copied at once, at most {@link #MESSAGE_MAX_BYTES}. Results as {@link #submit}. */
    int send(Peer peer, MemorySegment message);

    /** The longest message that {@code send} takes. */
    int MESSAGE_MAX_BYTES = 4096;

    /**
     * Opens a counter and the only ranges its writes may land in. Arrivals count from the first one, also if they
     * precede this call's expectation.
     *
     * @param area where writes carrying the window's imm may land, on regions of this engine
     * @param expectedWeight sum of weights that completes the window; at least 1
     * @param cookie comes back in {@code onWindowFilled} / {@code onWindowOvershot}
     * @return the window, or {@code null} when all {@link Imm#SLOT_COUNT_MAX} slots are in use
     */
    ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie);

    /**
     * Lets a peer read from ranges of this engine's regions, by the link over which this engine writes to it: until the window is
     * closed it may ask for pages in them, which this engine then writes into a window of the peer's own. This engine looks at
     * every page of every read, on every transport; a read of anything else is refused and moves nothing.
     *
     * @param area where the pages that it reads may lie, on regions of this engine
     * @param cookie comes back in {@code onReadWindowClosed}
     * @return the window, or {@code null} when there are too many
     */
    ReadWindow openForReading(Peer reader, WindowArea area, long cookie);

    /**
     * Reads pages of an admitted peer, which has opened a window for it. {@code cookie} comes back in exactly one completion
     * when {@link #ACCEPTED} was returned: when all has arrived; or when it was refused, or the admission has ended, and nothing of
     * it can land any more. A peer that falls silent ends no read: what ends it is the end of its admission.
     *
     * @return {@link #ACCEPTED}; {@link #BACK_PRESSURE}; {@link #PEER_LOST} when the admission has ended; {@link #REFUSED} when the
     *     read leaves a region, or its target pages overlap
     */
    int read(Admission owner, ReadRequest request, long cookie);

    /**
     * Hands up to {@code limit} completions to the handler, on the calling thread. Returns how many.
     *
     * @throws EngineEndedException when the engine has ended by an error of its own and all completions are handed out
     */
    int poll(CompletionHandler handler, int limit);

    /**
     * Waits until there may be something to poll: returns early when {@link #wake} was called since the last wait, and
     * now and then without a reason.
     *
     * @param limitNs how long at most; nothing is waited for when it is not positive
     */
    void await(long limitNs);

    /** Any thread: ends a wait, or the next one. Cheap while no thread waits. */
    void wake();

    /** Figures of this engine since it was opened. */
    TransferCounters counters();

    /** Tears down all paths and threads, in bounded time; idempotent. */
    @Override
    void close();
}
