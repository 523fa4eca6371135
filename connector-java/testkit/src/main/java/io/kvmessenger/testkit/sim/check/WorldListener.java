package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.wire.Ask;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * All observable events of the simulated world outside the messengers, at the time they happen. A process is named by
 * its node and incarnation, so that a restarted one has another name. A transfer is named by its prompt, since several
 * may have one id: see {@link io.kvmessenger.testkit.sim.PromptName}.
 */
public interface WorldListener {
    /** @param memories by rank, then by kind of context row */
    default void processStarted(String process, KvGeometry geometry, List<MemorySegment> memories) {}

    /** @param regionIds of its memories, in their order */
    default void regionsRegistered(String process, List<Integer> regionIds) {}

    default void processDied(String process) {}

    /** The process has compared pages that arrived with their checksums; parts of pages count as pages. */
    default void pagesCompared(String process, long count) {}

    /** The messenger has met an exception and ended one transfer, or one session, for it. */
    default void faultContained(String process) {}

    // ---- router

    /**
     * A request is on its way to engines.
     *
     * @param prefillers nodes that get the prompt, including those that get it from the decoder
     * @param decoders nodes that will be asked to fetch it
     * @param mustArrive whether nothing can prevent the arrival of its KV
     */
    default void requestRouted(String transferId, List<String> prefillers, List<String> decoders, boolean mustArrive) {}

    // ---- control network

    /**
     * A process closed its end of a link, or learned that the link is closed.
     *
     * @param dialled whether the process opened it, to fetch over it
     */
    default void linkClosed(String process, String peer, boolean dialled, String reason) {}

    /** The process has closed, or has been told of the end of, this end of a link; every end of a link has an id. */
    default void linkEnded(String process, long linkId) {}

    /** @param linkId of the end at which it arrived */
    default void askDelivered(String from, String to, long linkId, Ask ask) {}

    default void frameSent(String from, String to, ControlFrame frame) {}

    default void frameDelivered(String from, String to, ControlFrame frame) {}

    // ---- fabric

    /** A process admits the writes of a peer, which is named as its messenger names it. */
    default void admitted(String process, String peerName, int admissionId) {}

    /** Nothing lands through the admission any more, and the process is about to be notified. */
    default void admissionClosed(String process, int admissionId) {}

    default void writeSubmitted(PageWrite write) {}

    /** The source's bytes have just been read. */
    default void sourceRead(PageWrite write) {}

    /** A device has just copied bytes of a rank's memory to where a transport will read them. */
    default void deviceRead(String process, int rankIndex, long offset, int lengthBytes) {}

    /** Bytes {@code [fromByte, toByte)} of the write have just landed in the target's memory. */
    default void landed(PageWrite write, int fromByte, int toByte) {}

    /** An open window has counted the write's immediate. */
    default void counted(PageWrite write) {}

    /** Nothing of the write will land any more. Called once for each write, last. */
    default void writeGone(PageWrite write) {}

    /** A write was refused, at the writer or at the target. */
    default void writeRefused(String process, String detail) {}

    // ---- prefiller's engine

    /** The messenger asked its engine to compute a prompt that only the decoder got. */
    default void promptEnqueued(String process, String transferId) {}

    /** The engine rejected the prompt; the messenger may ask again. */
    default void promptRefused(String process, String transferId) {}

    /** The messenger is told of a request's first chunk, including its first after a preemption. */
    default void prefillBegun(String process, String request, String transferId) {}

    /** The request's page list grew by these pages. */
    default void prefillPagesTaken(String process, String request, int promptTokens, List<Integer> pages) {}

    /** The request's page list begins with these pages, shared with other requests that have the same beginning. */
    default void prefillPagesShared(String process, String request, int promptTokens, List<Integer> pages) {}

    /** In this layer of this rank the KV of all tokens before {@code endToken} is in the request's pages. */
    default void layerComputed(String process, String request, int rankIndex, int layerIndex, int endToken) {}

    /** A preemption has been fenced: the engine has the pages back, and the request restarts. */
    default void prefillPagesTakenBack(String process, String request, String transferId) {}

    default void prefillEnded(String process, String request, String transferId, PrefillOutcome outcome) {}

    /** The request's context rows are in this slot until it is released. */
    default void contextLeft(String process, String request, int slot) {}

    /** The messenger has released the pages of an ended prefill. */
    default void prefillReleased(String process, String request) {}

    /** The messenger has reported that everything has left. */
    default void prefillSent(String process, String request, String transferId) {}

    // ---- cached prefixes

    /**
     * An engine asks another one for a prefix.
     *
     * @param node that it asks
     * @param certain whether nothing goes wrong any more
     */
    default void pullAsked(
            String process, String request, String transferId, String node, long limitNs, boolean certain) {}

    /** The messenger learns now that the answer, or what is offered, is not wanted. */
    default void pullDeclined(String process, String request) {}

    default void pullOffered(String process, String request, int heldTokens, OfferOutcome outcome) {}

    /**
     * An engine is about to offer pages of one of its messengers; a prefill that has ended.
     *
     * @param answers whether it is the answer to the question, and not the part of a messenger beside that
     */
    default void offerMade(String process, String request, String transferId, int heldTokens, boolean answers) {}

    /** An engine uses what its messengers have pulled. */
    default void pullUsed(List<String> processes, String request) {}

    /** The engine is about to take an offer back. */
    default void offerWithdrawn(String process, String request) {}

    // ---- decoder's engine

    default void fetchAsked(FetchFacts fetch) {}

    /** There will be no fetch. */
    default void transferDeclined(String process, String transferId, List<String> prefillers) {}

    /** A request under this id never reached the engine, which reported that. */
    default void transferRejected(String process, String transferId, List<String> prefillers) {}

    default void fetchAbandoned(String process, String request) {}

    default void fetchArrived(String process, String request, int pageCount) {}

    /** The messenger has reported that the fetch is over, and that its pages must wait. */
    default void fetchQuarantined(String process, String request, String reason) {}

    default void fetchFailed(String process, String request, String reason) {}

    /** The decoder has read the pages of an arrived fetch for the last time. */
    default void decodeEnded(String process, String request) {}

    // ---- either engine

    /** These pages have a new owner, which has just written into them. */
    default void pagesOverwritten(String process, List<Integer> pages) {}

    // ---- the end

    /** A live process at the end of the liveness phase. */
    default void processAtRest(String process, HeldCounts held, int freePages, int pages, FabricHoldings fabric) {}

    /** Everything that could end has ended. */
    default void worldAtRest() {}

    /**
     * The resources that a process's transfer engine still holds.
     *
     * @param liveAdmissions admissions not closed
     * @param livePeers peers not lost or disconnected
     */
    record FabricHoldings(
            int windowsOpen, int allowances, int writesInFlight, int liveAdmissions, int livePeers, int sessions) {}
}
