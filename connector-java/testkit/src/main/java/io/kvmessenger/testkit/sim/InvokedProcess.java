package io.kvmessenger.testkit.sim;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.engine.EngineLimits;
import io.kvmessenger.transfer.engine.EnginePorts;
import io.kvmessenger.transfer.engine.InvokedEngine;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Function;

/** The production transfer engine of one simulated process, and its end of the fabric. */
record InvokedProcess(TransferEngine engine, SimulatedTransport transport) {
    /** The memory of a simulated engine is behind no descriptor, so that nothing of it is called. */
    private static final LibC LIB_C = new FfmLibC();

    /** @param onCompletion run when there is something to poll, and there was nothing before */
    static InvokedProcess start(
            SimulatedClock clock,
            SplittableRandom random,
            SimulatedNode node,
            SimulatedFabric fabric,
            EngineLimits limits,
            Runnable onCompletion) {
        SimulatedWorker worker = new SimulatedWorker(clock, random.split(), node, fabric);
        SimulatedTransport[] made = new SimulatedTransport[1];
        Transport first = simulated(SimulatedTransport.NAME, port -> {
            made[0] = new SimulatedTransport(node, fabric, worker, port, random.split());
            return made[0];
        });
        Transport next = simulated(NextDomain.NAME, port -> new NextDomain(made[0]));
        InvokedEngine invoked = new InvokedEngine(
                limits,
                new EnginePorts(
                        LIB_C,
                        node::nowNs,
                        random.split(),
                        worker,
                        new SimulatedLinks(fabric),
                        fabric.shape().fall().domains() == 1 ? List.of(first) : List.of(first, next)),
                onCompletion);
        worker.start(invoked);
        return new InvokedProcess(invoked.engine(), made[0]);
    }

    private static Transport simulated(String name, Function<InboundPort, Domain> opened) {
        return new Transport() {
            @Override
            public String name() {
                return name;
            }

            @Override
            public Domain open(InboundPort port, Figures figures) {
                return opened.apply(port);
            }
        };
    }
}
