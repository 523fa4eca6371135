package io.kvmessenger.messenger.port;

import java.util.Map;

/** Port: events for the engine's next poll, each one a JSON object. Any thread. */
public interface EventSink extends EngineLog {
    /** Adds an event that the engine waits for: it is kept until it is polled. Its texts have to be short. */
    void add(Map<String, Object> event);

    /** Adds such an event; {@code onPolled} runs when the engine takes it, on the thread that polls. */
    void add(Map<String, Object> event, Runnable onPolled);

    /** Adds an event that may be dropped, if too many wait or it does not fit into a poll. */
    void note(Map<String, Object> event);
}
