package io.kvmessenger.testkit.sim;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.engine.EngineLimits;
import io.kvmessenger.transfer.engine.EnginePorts;
import io.kvmessenger.transfer.engine.InvokedEngine;
import io.kvmessenger.transfer.engine.WorkerPorts;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Function;

/** The production transfer engine of one simulated process, and its end of the fabric. */
record InvokedProcess(TransferEngine engine, SimulatedTransport transport) {
    /** Never called, as the memory of a simulated engine has no descriptor. */
    private static final LibC LIB_C = new FfmLibC();

    /**
     * @param workerCount of the engine; each runs its duty cycles at its own times
     * @param copies for writes from device memory; null if the process writes from host memory
     * @param onCompletion run when there is something to poll, and was nothing before
     */
    static InvokedProcess start(
            SimulatedClock clock,
            SplittableRandom random,
            SimulatedNode node,
            SimulatedFabric fabric,
            EngineLimits limits,
            int workerCount,
            SimulatedCopies copies,
            Runnable onCompletion) {
        List<SimulatedWorker> workers = new ArrayList<>();
        for (int i = 0; i < workerCount; i++) {
            workers.add(new SimulatedWorker(clock, random.split(), node, fabric, i));
        }
        List<SimulatedTransport> made = new ArrayList<>();
        List<WorkerPorts> ports = new ArrayList<>();
        for (SimulatedWorker worker : workers) {
            Transport first = simulated(SimulatedTransport.NAME, port -> {
                made.add(new SimulatedTransport(node, fabric, worker, port, random.split()));
                return made.getLast();
            });
            Transport next = simulated(NextDomain.NAME, port -> new NextDomain(made.getLast()));
            ports.add(new WorkerPorts(
                    worker,
                    new SimulatedLinks(fabric),
                    fabric.shape().fall().domains() == 1 ? List.of(first) : List.of(first, next)));
        }
        EnginePorts engine = copies == null
                ? new EnginePorts(LIB_C, node::nowNs, random.split(), ports)
                : new EnginePorts(LIB_C, node::nowNs, random.split(), copies, copies.drawLimits(), ports);
        InvokedEngine invoked = new InvokedEngine(limits, engine, onCompletion);
        workers.forEach(worker -> worker.start(invoked));
        made.getFirst().leads(made);
        return new InvokedProcess(invoked.engine(), made.getFirst());
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
