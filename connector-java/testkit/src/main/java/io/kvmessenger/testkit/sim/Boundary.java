package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.LayerProgress;
import java.util.List;

/**
 * The boundary between an engine in Python and its messenger, docs/boundary.md. Production's implementation is passed
 * in, as the simulation lies below the module that contains it.
 */
public interface Boundary {
    /** Parses the commands of one {@code submit}. */
    List<EngineCommand> read(byte[] json);

    /** Opens the channel of one messenger. */
    Channel open(int layerCount);

    /** The channel between a messenger and its engine, and their layer counter. */
    interface Channel {
        EngineEvents events();

        /** The answer to one {@code poll}; empty when nothing has happened. */
        byte[] poll(int capacityBytes);

        LayerProgress progress();

        long layerCounterAddress();
    }
}
