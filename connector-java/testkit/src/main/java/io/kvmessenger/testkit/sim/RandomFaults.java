package io.kvmessenger.testkit.sim;

import java.util.List;
import java.util.function.Consumer;

/**
 * Faults of network, fabric and processes at random moments, at the rates of a run's {@link Swarm}, until its world
 * heals. Every draw is the world's. One thread.
 */
final class RandomFaults<P extends Incarnation> {
    /** A rate of 1 means one fault of the kind per this many periods. */
    private static final double PERIODS_PER_FAULT = 4;

    private final World<P> world;
    private final Swarm swarm;
    private final long periodNs;
    private final long silenceLimitNs;
    private final Consumer<P> leave;

    /** @param leave begins a process's end in good order */
    RandomFaults(World<P> world, long periodNs, long silenceLimitNs, Consumer<P> leave) {
        this.world = world;
        this.swarm = world.scenario().swarm();
        this.periodNs = periodNs;
        this.silenceLimitNs = silenceLimitNs;
        this.leave = leave;
    }

    void schedule() {
        world.clock().after(world.random.nextLong(2 * periodNs), () -> {
            if (!world.isHealed()) {
                strike();
                schedule();
            }
        });
    }

    private void strike() {
        if (happens(swarm.linkReset())) {
            world.network().resetAnyLink();
        }
        if (happens(swarm.halfOpen())) {
            world.network().silenceAnyLink();
        }
        if (happens(swarm.pathLoss())) {
            world.fabric().breakAnyPath();
        }
        if (happens(swarm.partition())) {
            partition();
        }
        if (happens(swarm.pauseShort())) {
            pause(world.random.nextLong(10 * Scenario.MILLI));
        }
        if (happens(swarm.pauseLong())) {
            pause(world.random.nextLong(3 * silenceLimitNs));
        }
        if (happens(swarm.crash())) {
            end();
        }
    }

    private boolean happens(double rate) {
        return world.random.nextDouble() < rate / PERIODS_PER_FAULT;
    }

    private void partition() {
        List<String> names = world.names();
        String one = names.get(world.random.nextInt(names.size()));
        String other = names.get(world.random.nextInt(names.size()));
        if (!one.equals(other)) {
            int which = world.random.nextInt(3);
            world.trace().add("world", "cut", one + " " + other + " " + which);
            world.partitions().cut(one, other, which != 1, which != 0);
            world.clock()
                    .after(
                            world.random.nextLong(80 * Scenario.MILLI),
                            () -> world.partitions().heal(one, other));
        }
    }

    private void pause(long lengthNs) {
        List<P> alive = world.alive();
        if (!alive.isEmpty()) {
            pause(alive.get(world.random.nextInt(alive.size())), lengthNs);
        }
    }

    void pause(P process, long lengthNs) {
        world.trace().add(process.node.process(), "pause", lengthNs / 1000 + " us");
        process.node.pause(world.clock().nowNs() + lengthNs);
    }

    private void end() {
        List<P> alive = world.alive();
        if (alive.size() >= 2) {
            end(alive.get(world.random.nextInt(alive.size())));
        }
    }

    /** Ends a process, in good order or not, and starts it again later. */
    void end(P process) {
        if (world.random.nextInt(3) == 0) {
            leave.accept(process);
        } else {
            world.kill(process, world.random.nextBoolean());
        }
        world.clock()
                .after(
                        World.LEAVE_LIMIT_NS + world.random.nextLong(60 * Scenario.MILLI),
                        () -> world.restart(process.node.name()));
    }
}
