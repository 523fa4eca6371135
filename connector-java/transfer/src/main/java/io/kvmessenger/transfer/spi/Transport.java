package io.kvmessenger.transfer.spi;

/** Opens this machine's {@link Domain} of one transport, or says in one line why it cannot. */
public interface Transport {
    /** Its name in addresses and options. */
    String name();

    /**
     * Opens this machine's domain. Called before the worker starts.
     *
     * @param port receives what arrives
     * @param figures counters to use
     * @throws TransportUnavailableException if the machine has none, or the operating system refuses it
     * @throws IllegalArgumentException naming the option that is wrong
     */
    Domain open(InboundPort port, Figures figures) throws TransportUnavailableException;
}
