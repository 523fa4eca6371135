package io.kvmessenger.messenger.session;

import io.kvmessenger.transfer.EngineEndedException;
import java.util.function.IntSupplier;
import java.util.function.ToIntFunction;

/** Keeps a bug that the work for one transfer meets from the others, which are sound. Stateless. */
public final class Isolation {
    private Isolation() {}

    /**
     * Works for one transfer. The end of the transfer engine is not that transfer's own, and is thrown on.
     *
     * @param fail ends the transfer that met a bug, and says how much was done
     * @return how much was done
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
