package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.MessengerState;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * A subject as its engine uses it: the functions of docs/boundary.md whose meaning depends on what is moved.
 *
 * <p>Any thread may call {@link #commands}, {@link #fence} and {@link #layerCounterAddress}; the messenger's thread calls
 * the rest, and runs what they return.
 */
public interface EngineSubject extends AutoCloseable {
    /** Its other half, which the messenger's duty cycle serves. */
    ServedSubject served();

    /**
     * Reads commands, all of them before the first one is carried out.
     *
     * @throws IllegalArgumentException with one sentence, for the user
     */
    List<Runnable> commands(List<Fields> commands);

    /**
     * A command after which nothing reads the memory of these requests.
     *
     * @param reached completed then
     * @throws IllegalArgumentException with one sentence, if the subject has nothing to fence
     */
    default Runnable fence(List<String> requests, CompletableFuture<Void> reached) {
        throw new IllegalArgumentException("a messenger of subject '" + served().kind()
                + "' was asked for a fence of requests, which only one of a KV cache has: do not fence it");
    }

    /** The resources that are held for unfinished work, by name; all 0 at rest. */
    Map<String, Integer> held();

    /** What the status page shows. {@code rowsMax} limits each list. */
    MessengerState describe(int rowsMax);

    /** Why the engine should get no new requests, for {@code /ready}; "" = it may get some. Fixed from the start. */
    default String notReady() {
        return "";
    }

    /** Address of the word by which an engine reports complete layers; 0 = there is none. */
    default long layerCounterAddress() {
        return 0;
    }

    /** Closes what it has started beside the messenger, after the messenger's thread has ended. */
    @Override
    void close();
}
