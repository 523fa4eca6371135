package io.kvmessenger.weights;

/**
 * What a sender hears of its hosts, each named by its ticket. Called on the messenger's thread. After an event about an
 * update no write to that host reads the sender's memory.
 */
public interface SenderEvents {
    /** The host can be written to. */
    void attached(String ticket, String host);

    /** The host has all of the update, with the right digest. */
    void landed(String ticket, long updateId);

    /** Every rank of the host's engine has loaded it. */
    void applied(String ticket, long updateId);

    /** The update has ended at this host, which serves what it served before; id 0 = the host takes no update at all. */
    void refused(String ticket, long updateId, String reason);

    /** The session with the host has ended, and with it any update. */
    void lost(String ticket, String reason);
}
