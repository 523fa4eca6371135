package io.kvmessenger.messenger;

import java.util.Set;

/** What a messenger is opened for, read and checked, but not started. A value. */
public interface SubjectRequest {
    /** Whether peers dial this messenger: then it listens. */
    boolean listens();

    /** Start addresses of memories that a {@link io.kvmessenger.transfer.TransferDecorator} has to tell from others. */
    default Set<Long> contextAddresses() {
        return Set.of();
    }

    /**
     * Registers memory and makes the subject; called once, by the thread that opens the messenger, before any link. If
     * it throws, it has left nothing open but what it registered.
     */
    EngineSubject open(SubjectPorts ports);
}
