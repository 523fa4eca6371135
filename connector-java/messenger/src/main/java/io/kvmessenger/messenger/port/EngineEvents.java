package io.kvmessenger.messenger.port;

import java.util.List;

/** Port: what the engine is told. Called on the messenger's thread; implementations enqueue and return. */
public interface EngineEvents {
    /** Prefiller: nothing reads the request's pages any more. Once for each {@link EngineCommand.PrefillEnded}. */
    void released(String request);

    /** Decoder: all pages of the fetch hold their KV; nothing writes to them any more. */
    void arrived(String request, int pageCount);

    /** Decoder: the fetch has ended without its KV; nothing writes to the pages any more. */
    void failed(String request, String reason);

    /**
     * Prefiller: an announced request has the decoder's grant, for tokens {@code [firstToken, promptTokens)}.
     *
     * @param contextKinds context rows that it asks for
     */
    default void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {}

    /** Prefiller: an announced request will not be sent (any further); {@link #released} follows when it has ended. */
    default void stopped(String request, String reason) {}

    /**
     * Decoder: the prefiller's engine has ended the prompt of an expected transfer, or will not be heard of. A fetch waits for
     * nothing that the engine has yet to do. Not told of transfers that are fetched already.
     */
    default void prefilled(TransferKey transfer) {}

    /**
     * Decoder: the fetch is over without its KV, and its peer may still write to the pages; {@code failed} follows when it
     * cannot any more. The request need not wait for that, its pages must.
     */
    default void quarantined(String request, String reason) {}

    /** When a prefill's chunks and layers left; after its last write. */
    void timeline(PrefillTimeline timeline);

    /** When a fetch was granted and became ready; after its last immediate. */
    void timeline(FetchTimeline timeline);

    void log(Level level, String message);

    /** How much a log line matters to an operator. */
    enum Level {
        INFO,
        WARNING,
        ERROR
    }
}
