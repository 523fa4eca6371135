package io.kvmessenger.testkit.echo;

/** The ends of asks: exactly one for each. Called on the messenger's thread. */
public interface EchoEvents {
    /** What was asked for is in the asker's region. */
    void arrived(long id);

    /** Nothing of it lands any more, and part of it may have. */
    void failed(long id, String reason);
}
