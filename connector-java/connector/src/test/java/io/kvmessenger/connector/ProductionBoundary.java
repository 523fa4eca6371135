package io.kvmessenger.connector;

import io.kvmessenger.hooks.LayerCounter;
import io.kvmessenger.hooks.StepQueue;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.testkit.sim.Boundary;
import io.kvmessenger.testkit.sim.SilentTally;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;

/** What stands between Python and the messenger in production: the commands' reader, the event queue, the layer counter. */
final class ProductionBoundary implements Boundary {
    @Override
    public List<EngineCommand> read(byte[] json) {
        return CommandReader.read(RequestJson.parse("submit", json).objects("commands"));
    }

    @Override
    public Channel open(int layerCount) {
        return new OpenChannel(layerCount);
    }

    private static final class OpenChannel implements Channel {
        private final EventQueue queue = new EventQueue(new SilentTally(), System::nanoTime);
        private final EngineEvents events =
                new KvEvents(queue, new SilentTally(), KvEvents.Timelines.SUMMARY, System::nanoTime);
        /** Python writes it by its address; it lives as long as this object. */
        private final MemorySegment counterWord =
                Arena.ofAuto().allocate(LayerCounter.LENGTH_BYTES, LayerCounter.LENGTH_BYTES);

        private final LayerProgress progress;

        OpenChannel(int layerCount) {
            progress = new HookedLayerProgress(new LayerCounter(counterWord), StepQueue.LAG_NONE, layerCount);
        }

        @Override
        public EngineEvents events() {
            return events;
        }

        @Override
        public byte[] poll(int capacityBytes) {
            return queue.drain(capacityBytes);
        }

        @Override
        public LayerProgress progress() {
            return progress;
        }

        @Override
        public long layerCounterAddress() {
            return counterWord.address();
        }
    }
}
