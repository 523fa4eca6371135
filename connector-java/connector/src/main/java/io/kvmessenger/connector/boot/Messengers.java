package io.kvmessenger.connector.boot;

/**
 * The messengers of this process, as the functions of docs/boundary.md need them; requests and answers are UTF-8 JSON.
 *
 * <p>Called from any thread, also from several at once. A method that fails throws: the message of a {@link
 * RefusedException} reaches the user as it is, anything else is reported as a bug. Only {@link #open}, {@link #fence},
 * {@link #await} and {@link #close} may block, within limits of their own.
 */
public interface Messengers {
    /** A handle is above 0 and is never given twice. */
    OpenResult open(byte[] request);

    void submit(long handle, byte[] request);

    /** At most {@code capacityBytes} of events, empty when there are none; those that do not fit stay for the next call. */
    byte[] poll(long handle, int capacityBytes);

    byte[] stats(long handle);

    byte[] fence(long handle, byte[] request);

    byte[] leakCheck(long handle);

    /** Until there is something to poll, or the limit of the request is over. */
    void await(long handle, byte[] request);

    /** Harmless for a handle that is closed already. */
    void close(long handle);
}
