package io.kvmessenger.transfer;

import java.util.Set;

/**
 * Extension point: stands between a messenger and its transfer engine. It is named by a system property, so that tests can
 * put faults there that are in no wheel; production names none.
 *
 * <p>Has a constructor without parameters. Called once for each messenger, by the thread that opens it.
 */
@FunctionalInterface
public interface TransferDecorator {
    /**
     * @param contextAddresses where the memories of context rows begin; all others hold KV
     * @return the engine itself, or one around it with the same threading
     */
    TransferEngine decorate(TransferEngine engine, Set<Long> contextAddresses);
}
