package io.kvmessenger.transfer;

import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Moves bytes into other engines' registered memory and counts what arrives in this one's.
 *
 * <p>Contract. No order is assumed between writes. An immediate is seen only after its payload is visible. Local
 * completion of a write means that its source may be reused; it implies nothing about the target. A slow or dead peer
 * never delays writes of the same {@link TrafficClass} to others. Inbound progress depends on no caller, unless the
 * engine was opened with {@link ThreadingMode#CALLER}: then all work is done in {@link #poll} and {@link #await},
 * {@link #close} must be called by the polling thread too, and that thread must keep polling.
 *
 * <p>Threading: {@code submit}, {@code group}, {@code send}, {@code allow}, {@code register}, {@code admit},
 * {@code connect}, {@code openWindow}, {@code openForReading} and {@code read} may be called from any one thread at a
 * time (the messenger's); {@link #poll} and {@link #await} are called by that same thread, and a
 * {@link CompletionHandler} runs only in {@code poll}. Workers never run user code.
 *
 * <p>It does not retry, does not know what a page means to an inference engine, and does not decide when a peer is
 * dead: it reports facts.
 */
public interface TransferEngine extends AutoCloseable {
    /** {@link #submit} accepted the request; its completion will be polled. */
    int ACCEPTED = 0;
    /** The queue to this peer is full: poll, then try again. Nothing was accepted. */
    int BACK_PRESSURE = -1;
    /** The peer is gone, or was never reached; its loss has been or will be polled. Nothing was accepted. */
    int PEER_LOST = -2;
    /** The request is outside its region or window; nothing was accepted, and {@link #refusal()} gives the reason. */
    int REFUSED = -3;

    /** The address by which other engines reach this one, encoded in at most {@link EngineAddress#LENGTH_MAX_BYTES}. */
    EngineAddress address();

    /** For each transport that was requested but is not available on this machine: the reason, in one line. */
    default List<String> unavailable() {
        return List.of();
    }

    /** Lines for the log about how registered memory is accessed, where that matters to an operator. */
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

    /** Ends an admission and closes its data paths. Nothing can land once {@code onAdmissionClosed} is polled. */
    void revoke(Admission admission);

    /**
     * As {@link #revoke}, if no peer has a socket open by the admission; otherwise the admission ends with that socket's
     * data paths, and no further socket is accepted.
     */
    void revokeUnused(Admission admission);

    /** Starts to open data paths to a peer; {@code onPeerReady} or {@code onPeerLost} follows. Never blocks. */
    Peer connect(EngineAddress address, byte[] admissionKey, String peerName);

    /** Ends the data paths to a peer; writes not yet completed complete as failed. */
    void disconnect(Peer peer);

    /**
     * Permits writes to a peer's window, whose location the peer has sent. Every page of every later {@link #submit} is
     * checked against the area, on every transport; on shared memory and RDMA, where the target does not see writes,
     * this is the only check.
     *
     * @param imm the window's slot and generation, weight zero
     * @param area where writes that carry the imm may land, on the peer's regions
     * @param trafficClass of all writes to the window
     * @return the handle that requests for this window name
     */
    RemoteWindow allow(Peer peer, int imm, WindowArea area, TrafficClass trafficClass);

    /** The same for urgent writes. */
    default RemoteWindow allow(Peer peer, int imm, WindowArea area) {
        return allow(peer, imm, area, TrafficClass.URGENT);
    }

    /** Revokes {@link #allow}: later submits are refused. Writes already accepted still complete. */
    void disallow(Peer peer, RemoteWindow window);

    /**
     * Submits writes. If {@link #ACCEPTED} is returned, {@code cookie} is reported in exactly one completion. The
     * engine reads the request's arrays and source memory until that completion.
     *
     * @return {@link #ACCEPTED}, {@link #BACK_PRESSURE}, {@link #PEER_LOST} or {@link #REFUSED}
     */
    int submit(Peer peer, TransferRequest request, long cookie);

    /**
     * Creates a group of peers that are written to together, so that no submit has to look them up. It holds no
     * resources and need not be closed.
     *
     * @param name for logs and errors
     * @param members live peers of this engine, each once, at least one
     * @throws IllegalArgumentException when the members are not
     */
    PeerGroup group(String name, List<Peer> members);

    /**
     * Submits one write for each member of a group: to all members that are not lost, or to none. {@code cookie} is
     * reported in exactly one completion, when the last part has ended. A part whose member is lost, before or
     * afterwards, fails alone: {@link CompletionHandler#onMemberFailed} names the member, and the others are written.
     * While one member's queue is full the result is {@link #BACK_PRESSURE}, so a member that may be slow without
     * delaying the others must not be in the group.
     *
     * @return as for a single peer; {@link #PEER_LOST} only when this engine has ended
     */
    int submit(PeerGroup group, GroupRequest request, long cookie);

    /** Why the last {@link #submit} or {@link #read} was {@link #REFUSED}; one sentence. */
    String refusal();

    /** Sends a small message, copied at once, of at most {@link #MESSAGE_MAX_BYTES}. Results as for {@link #submit}. */
    int send(Peer peer, MemorySegment message);

    /** The longest message that {@code send} takes. */
    int MESSAGE_MAX_BYTES = 4096;

    /**
     * Opens a counter, together with the only ranges that its writes may land in. Every arrival counts, from the first
     * one on.
     *
     * @param area where writes carrying the window's imm may land, on regions of this engine
     * @param expectedWeight sum of weights that completes the window; at least 1
     * @param cookie reported in {@code onWindowFilled} / {@code onWindowOvershot}
     * @return the window, or {@code null} when all {@link Imm#SLOT_COUNT_MAX} slots are in use
     */
    ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie);

    /**
     * Lets a peer read from ranges of this engine's regions, over the link by which this engine writes to it: until the
     * window is closed the peer may request pages in them, which this engine then writes into a window of the peer's
     * own. Every page of every read is checked by this engine, on every transport; a read outside the ranges is refused
     * and moves nothing.
     *
     * @param area where the pages that may be read lie, on regions of this engine
     * @param cookie reported in {@code onReadWindowClosed}
     * @return the window, or {@code null} when there are too many
     */
    ReadWindow openForReading(Peer reader, WindowArea area, long cookie);

    /**
     * Reads pages of an admitted peer that has opened a window for it. If {@link #ACCEPTED} is returned, {@code cookie}
     * is reported in exactly one completion: when everything has arrived; or when the read was refused or the admission
     * has ended, and nothing of it can land any more. A read from a silent peer ends only with its admission.
     *
     * @return {@link #ACCEPTED}; {@link #BACK_PRESSURE}; {@link #PEER_LOST} when the admission has ended;
     *     {@link #REFUSED} when the read is outside a region, or its target pages overlap
     */
    int read(Admission owner, ReadRequest request, long cookie);

    /**
     * Passes up to {@code limit} completions to the handler, on the calling thread. Returns their number.
     *
     * @throws EngineEndedException when the engine has ended by an error of its own and all completions have been
     *     passed on
     */
    int poll(CompletionHandler handler, int limit);

    /**
     * Waits until there may be something to poll. Returns early when {@link #wake} was called since the last wait; may
     * also return spuriously.
     *
     * @param limitNs longest wait; not positive = no wait
     */
    void await(long limitNs);

    /** Ends a wait, or the next one. Any thread; cheap while no thread waits. */
    void wake();

    /** Counters of this engine since it was opened. */
    TransferCounters counters();

    /** Closes all paths and ends all threads, in bounded time; idempotent. */
    @Override
    void close();
}
