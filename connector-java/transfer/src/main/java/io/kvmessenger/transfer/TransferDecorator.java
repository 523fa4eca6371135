package io.kvmessenger.transfer;

import java.util.Set;

/**
 * Extension point between a messenger and its transfer engine. A system property names the implementation, so that
 * tests can inject faults without code in the wheel; production sets none.
 *
 * <p>Implementations have a constructor without parameters. Called once for each messenger, by the thread that opens
 * it.
 */
@FunctionalInterface
public interface TransferDecorator {
    /**
     * @param contextAddresses start addresses of the memories of context rows; all others hold KV
     * @return the engine itself, or a wrapper with the same threading
     */
    TransferEngine decorate(TransferEngine engine, Set<Long> contextAddresses);
}
