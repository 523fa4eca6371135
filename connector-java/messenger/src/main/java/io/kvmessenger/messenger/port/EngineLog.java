package io.kvmessenger.messenger.port;

/** Port: lines for the engine's log. Called on the messenger's thread; implementations enqueue and return. */
public interface EngineLog {
    void log(Level level, String message);

    /** How much a log line matters to an operator. */
    enum Level {
        INFO,
        WARNING,
        ERROR
    }
}
