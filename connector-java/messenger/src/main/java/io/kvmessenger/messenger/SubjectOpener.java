package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.Fields;

/**
 * A kind of subject that an engine can open a messenger for. A {@link java.util.ServiceLoader} finds it, and the request
 * names it by its kind: so what is moved may be in a jar of its own.
 *
 * <p>Without state, and with a constructor without parameters. Any thread.
 */
public interface SubjectOpener {
    /** The kind of the subject, the same word as on the wire. */
    String kind();

    /**
     * Reads what a request says of the subject, before anything is started.
     *
     * @param options the messenger's options, which may have some for this subject
     * @param subject the subject's part of the request
     * @throws IllegalArgumentException with one sentence, for the user
     */
    SubjectRequest read(Fields options, Fields subject);
}
