package io.kvmessenger.messenger.port;

import java.util.List;

/** Port: the events that the engine receives. Called on the messenger's thread; implementations enqueue and return. */
public interface EngineEvents extends EngineLog {
    /** Prefiller: nothing reads the request's pages any more. Sent once for each {@link EngineCommand.PrefillEnded}. */
    void released(String request);

    /** Decoder: all pages of the fetch hold their KV; nothing writes to them any more. */
    void arrived(String request, int pageCount);

    /** Decoder: the fetch has ended without its KV; nothing writes to the pages any more. */
    void failed(String request, String reason);

    /**
     * Prefiller: a decoder has granted an announced request, for tokens {@code [firstToken, promptTokens)}.
     *
     * @param contextKinds names of the context rows that the decoder requests
     */
    default void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {}

    /** Prefiller: nothing (more) of an announced request will be sent; {@link #released} follows after its end. */
    default void stopped(String request, String reason) {}

    /**
     * Decoder: the prefiller's engine has ended the prompt of an expected transfer, or no event about it will come. A
     * fetch from now on does not wait for that engine, so its pages are in use only for the transfer itself. Not sent
     * for transfers that are fetched already.
     */
    default void prefilled(TransferKey transfer) {}

    /**
     * The engine that was asked for a cached prefix holds so many tokens of it; 0 for the reason in {@code outcome}. Sent
     * once for each {@link EngineCommand.Ask}.
     */
    default void offered(String request, int heldTokens, OfferOutcome outcome) {}

    /**
     * Decoder: the fetch has failed, and its peer may still write to the pages; {@code failed} follows when it cannot
     * any more. The request need not wait for that, but its pages must.
     */
    default void quarantined(String request, String reason) {}

    /**
     * Decoder: a session with the prefiller's messenger at this address is open. Sent before any event of a fetch that
     * it serves.
     *
     * @param incarnation differs from that of any other process, also of an earlier one at the same address
     */
    default void connected(String host, int port, long incarnation) {}

    /** Decoder: no session with a messenger at this address is open any more, or none could be opened. */
    default void disconnected(String host, int port) {}

    /** When the chunks and layers of a prefill were sent; reported after its last write. */
    void timeline(PrefillTimeline timeline);

    /** When a fetch was granted and arrived; reported after its last immediate. */
    void timeline(FetchTimeline timeline);
}
