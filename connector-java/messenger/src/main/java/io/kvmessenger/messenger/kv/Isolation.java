package io.kvmessenger.messenger.kv;

import io.kvmessenger.transfer.EngineEndedException;
import java.util.function.IntSupplier;
import java.util.function.ToIntFunction;

/** Confines a bug met while working for one transfer to that transfer. Stateless. */
public final class Isolation {
    private Isolation() {}

    /**
     * Runs work for one transfer. {@link EngineEndedException} concerns all transfers and is rethrown.
     *
     * @param fail ends the transfer that met a bug; returns the amount of work done
     * @return the amount of work done
     */
    public static int run(IntSupplier work, ToIntFunction<Throwable> fail) {
        try {
            return work.getAsInt();
        } catch (EngineEndedException dead) {
            throw dead;
        } catch (RuntimeException | AssertionError bug) {
            return fail.applyAsInt(bug);
        }
    }
}
