package io.kvmessenger.connector.boot;

/**
 * The messengers of this process, as the functions of docs/boundary.md need them; requests and answers are UTF-8 JSON.
 *
 * <p>May be called from several threads at once. A failing method throws: the message of a {@link RefusedException}
 * reaches the user unchanged, anything else is reported as a bug. Only {@link #open}, {@link #fence}, {@link #await}
 * and {@link #close} may block, within limits of their own.
 */
public interface Messengers {
    /** Handles are above 0 and never reused. */
    OpenResult open(byte[] request);

    void submit(long handle, byte[] request);

    /** Up to {@code capacityBytes} of events, empty if there are none; those that do not fit stay for the next call. */
    byte[] poll(long handle, int capacityBytes);

    byte[] stats(long handle);

    byte[] fence(long handle, byte[] request);

    byte[] leakCheck(long handle);

    /** Blocks until there is something to poll, or the limit of the request has passed. */
    void await(long handle, byte[] request);

    /** Has no effect on a handle that is closed already. An empty request stands for the end of the engine. */
    void close(long handle, byte[] request);

    /** Closes at the end of the engine. */
    default void close(long handle) {
        close(handle, new byte[0]);
    }
}
