package io.kvmessenger.testkit.sim;

import java.util.List;
import java.util.SplittableRandom;

/** Places the faults of the {@link Swarm} at random moments of the safety phase. */
final class Faults {
    private static final long PERIOD_NS = 4 * Scenario.MILLI;
    /** A rate of 1 means one fault of the kind per this many periods. */
    private static final double PERIODS_PER_FAULT = 6;

    private final Simulation world;
    private final Swarm swarm;
    private final SplittableRandom random;
    /** Source of which lanes break, and when. */
    private final SplittableRandom lanes;

    private boolean ended;

    Faults(Simulation world, SplittableRandom random) {
        this.world = world;
        this.swarm = world.scenario().swarm();
        this.random = random;
        this.lanes = new SplittableRandom(world.scenario().seed() * 0xEB44ACCAB455D165L + 2);
        schedule();
        if (world.scenario().lanes().breakPeriodNs() > 0) {
            scheduleLane();
        }
        if (world.scenario().fall().swallowPeriodNs() > 0) {
            scheduleSwallowing(new SplittableRandom(world.scenario().seed() * 0xD6E8FEB86659FD93L + 2));
        }
        ClockJumps jumps = world.scenario().hardships().jumps();
        if (jumps.periodNs() > 0) {
            scheduleJump(jumps, new SplittableRandom(world.scenario().seed() * 0xD6E8FEB86659FD93L + 4));
        }
    }

    private void scheduleJump(ClockJumps jumps, SplittableRandom jumping) {
        world.clock().after(jumping.nextLong(2 * jumps.periodNs()), () -> {
            if (!ended) {
                jump(jumps, jumping);
                scheduleJump(jumps, jumping);
            }
        });
    }

    private void jump(ClockJumps jumps, SplittableRandom jumping) {
        long lengthNs = ClockJumps.drawLengthNs(world.scenario().limits(), jumping);
        boolean stops = jumping.nextDouble() < jumps.stops();
        List<SimulatedNode> nodes = jumpers(jumping);
        for (SimulatedNode node : nodes) {
            world.trace().add(node.process(), stops ? "stop" : "jump", lengthNs / 1000 + " us");
            if (stops) {
                node.pause(world.clock().nowNs() + lengthNs);
            } else {
                node.jump(lengthNs);
            }
        }
    }

    /** One process, all of one side, or all. */
    private List<SimulatedNode> jumpers(SplittableRandom jumping) {
        List<SimulatedNode> all =
                world.alive().stream().map(process -> process.node).toList();
        return switch (jumping.nextInt(4)) {
            case 0 -> all;
            case 1 -> all.stream().filter(node -> node.name().startsWith("P")).toList();
            case 2 -> all.stream().filter(node -> node.name().startsWith("D")).toList();
            default -> all.isEmpty() ? all : List.of(all.get(jumping.nextInt(all.size())));
        };
    }

    private void scheduleLane() {
        long periodNs = world.scenario().lanes().breakPeriodNs();
        world.clock().after(lanes.nextLong(2 * periodNs), () -> {
            if (!ended) {
                world.fabric().breakAnyLane(lanes);
                scheduleLane();
            }
        });
    }

    private void scheduleSwallowing(SplittableRandom swallowing) {
        long periodNs = world.scenario().fall().swallowPeriodNs();
        world.clock().after(swallowing.nextLong(2 * periodNs), () -> {
            if (!ended) {
                world.fabric().swallowOnAnyLane(swallowing);
                scheduleSwallowing(swallowing);
            }
        });
    }

    void end() {
        ended = true;
    }

    private void schedule() {
        world.clock().after(random.nextLong(2 * PERIOD_NS), this::strike);
    }

    private void strike() {
        if (ended) {
            return;
        }
        if (!world.alive().isEmpty()) {
            strikeOnce();
        }
        schedule();
    }

    private void strikeOnce() {
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
            pause(random.nextLong(10 * Scenario.MILLI));
        }
        if (happens(swarm.pauseLong())) {
            long limitNs = world.scenario().limits().silenceLimitNs();
            pause(limitNs + random.nextLong(3 * limitNs));
        }
        if (happens(swarm.crash())) {
            crash();
        }
    }

    private boolean happens(double rate) {
        return random.nextDouble() < rate / PERIODS_PER_FAULT;
    }

    private SimulatedProcess any() {
        List<SimulatedProcess> alive = world.alive();
        return alive.get(random.nextInt(alive.size()));
    }

    private void partition() {
        String one = any().node.name();
        String other = any().node.name();
        if (one.equals(other)) {
            return;
        }
        int which = random.nextInt(3);
        world.partitions().cut(one, other, which != 1, which != 0);
        world.trace().add("world", "cut", one + " " + other + " " + which);
        world.clock().after(random.nextLong(80 * Scenario.MILLI), () -> {
            world.trace().add("world", "heal", one + " " + other);
            world.partitions().heal(one, other);
        });
    }

    private void pause(long lengthNs) {
        SimulatedNode node = any().node;
        world.trace().add(node.process(), "pause", lengthNs / 1000 + " us");
        node.pause(world.clock().nowNs() + lengthNs);
    }

    private void crash() {
        if (world.alive().size() < 2) {
            return;
        }
        SimulatedProcess process = any();
        if (random.nextInt(3) == 0) {
            world.shutDown(process);
        } else {
            world.kill(process, random.nextBoolean());
        }
        if (random.nextInt(4) > 0) {
            world.clock().after(random.nextLong(60 * Scenario.MILLI), () -> world.restart(process.node.name()));
        }
    }
}
