package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.LayerProgress;
import java.util.List;

/**
 * How an engine in Python and its messenger speak, docs/boundary.md. The simulation is given what production uses: it
 * stands below the module that has it.
 */
public interface Boundary {
    /** The commands of one {@code submit}. */
    List<EngineCommand> read(byte[] json);

    /** What one messenger is opened with. */
    Channel open(int layerCount);

    /** One messenger's way to its engine, and the layer counter between them. */
    interface Channel {
        EngineEvents events();

        /** The answer to one {@code poll}; empty when nothing has happened. */
        byte[] poll(int capacityBytes);

        LayerProgress progress();

        long layerCounterAddress();
    }
}
