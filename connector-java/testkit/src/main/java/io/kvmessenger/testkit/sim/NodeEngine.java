package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.List;
import java.util.SplittableRandom;

/**
 * The inference engine of one process: receives requests from the router, holds pages, sends its messenger commands and
 * receives its events. For the simulation's thread; it is not called after its process has died.
 */
interface NodeEngine {
    /** Creates the engine of each process of a run. */
    interface Maker {
        NodeEngine start(Simulation world, SimulatedNode node, PagePool pool, SplittableRandom random);
    }

    /** A router sends a prompt to be computed here. */
    void prefill(TransferKey transfer, int promptTokens);

    /**
     * A router sends a request whose KV a prefiller has, or will have if the decoder gets the request first.
     *
     * @param prefillers every messenger of the prefiller's engine
     */
    void decode(TransferKey transfer, List<PrefillerAddress> prefillers, int promptTokens, boolean decoderFirst);

    /** The API server of this decoder rejects a request that would have fetched KV under this id. */
    void reject(String transferId, List<PrefillerAddress> prefillers);

    /** After all faults: asks each other engine for a cached prefix, if the run's engines ask at all. */
    default void pullFromAll() {}

    EngineEvents events();

    EngineIntake intake();

    LayerProgress progress();

    /** The safety phase is over: no further aborts, preemptions or failures. */
    void heal();

    /** Requests that have not ended. */
    int unendedCount();

    String describeUnended();

    /** Throws a violation if any state is left although all requests have ended. */
    default void checkAtRest() {}
}
