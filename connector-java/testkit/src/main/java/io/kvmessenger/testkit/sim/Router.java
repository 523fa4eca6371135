package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.EngineCommand.PrefillerAddress;
import java.util.List;
import java.util.SplittableRandom;

/** Sends requests to prefillers and decoders: both legs in any order, the decoder's only, or one leg lost. */
final class Router {
    private final Simulation world;
    private final SplittableRandom random;
    private int lastTransfer;

    Router(Simulation world, SplittableRandom random) {
        this.world = world;
        this.random = random;
        for (int i = 0; i < world.scenario().requestCount(); i++) {
            world.clock().at(random.nextLong(Scenario.SAFETY_NS), this::send);
        }
    }

    private void send() {
        Scenario scenario = world.scenario();
        Swarm swarm = scenario.swarm();
        String transferId = "t" + ++lastTransfer;
        String prefiller = "P" + random.nextInt(scenario.prefillerCount());
        String decoder = "D" + random.nextInt(scenario.decoderCount());
        if (scenario.bothRoles() && random.nextBoolean()) {
            decoder = prefiller.equals("P0") ? "P1" : "P0";
        }
        int tokens = 1 + random.nextInt(6 * scenario.pageTokens() + 3);
        boolean decoderFirst = random.nextDouble() < swarm.decoderFirst();
        boolean singleLeg = random.nextDouble() < swarm.singleLeg();
        boolean prefillLeg = !decoderFirst && !(singleLeg && random.nextBoolean());
        boolean decodeLeg = decoderFirst || !(singleLeg && prefillLeg);
        int prefillTokens = random.nextDouble() < swarm.wrongPrompt() ? tokens + 1 : tokens;
        world.trace()
                .add(
                        "router",
                        "request",
                        transferId + " " + tokens + " tokens" + (prefillLeg ? " " + prefiller : "")
                                + (decodeLeg ? " " + decoder : "") + (decoderFirst ? " decoder first" : ""));
        if (prefillLeg) {
            world.clock().after(legDelayNs(), () -> world.enqueue(prefiller, transferId, prefillTokens));
        }
        if (decodeLeg) {
            List<PrefillerAddress> prefillers = scenario.messengersOf(prefiller).stream()
                    .map(name -> new PrefillerAddress(name, 1, ""))
                    .toList();
            for (String name : scenario.messengersOf(decoder)) {
                world.clock().after(legDelayNs(), () -> {
                    SimulatedProcess process = world.process(name);
                    if (process != null) {
                        process.engine.decode(transferId, prefillers, tokens, decoderFirst);
                    }
                });
            }
        }
    }

    private long legDelayNs() {
        return random.nextInt(4) == 0 ? random.nextLong(20 * Scenario.MILLI) : random.nextLong(Scenario.MILLI);
    }
}
