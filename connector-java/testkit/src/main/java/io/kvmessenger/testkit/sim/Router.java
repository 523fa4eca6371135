package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;

/**
 * Sends requests to prefillers and decoders: both legs in any order, the decoder's only, or one leg lost. When all is healed,
 * one for each two engines, whose KV has to arrive.
 */
final class Router {
    private static final long BURST_PERIOD_NS = 50 * Scenario.MILLI;
    private static final long BURST_NS = Scenario.MILLI / 2;

    private final Simulation world;
    private final SplittableRandom random;
    private int lastTransfer;

    Router(Simulation world, SplittableRandom random) {
        this.world = world;
        this.random = random;
        for (int i = 0; i < world.scenario().requestCount(); i++) {
            world.clock().at(inBursts(random.nextLong(Scenario.SAFETY_NS)), this::send);
        }
    }

    /** In half of all runs many requests come at the same moment, so that one pass begins several of them. */
    private long inBursts(long atNs) {
        return world.scenario().seed() % 2 == 0 ? atNs - atNs % BURST_PERIOD_NS + atNs % BURST_NS : atNs;
    }

    /** Both legs between each prefiller and each engine that decodes. */
    void sendBetweenAll() {
        Scenario scenario = world.scenario();
        for (int p = 0; p < scenario.prefillerCount(); p++) {
            for (int d = 0; d < scenario.decoderCount(); d++) {
                sendBetween("P" + p, "D" + d);
            }
            if (scenario.bothRoles()) {
                sendBetween("P" + p, p == 0 ? "P1" : "P0");
            }
        }
    }

    private void sendBetween(String prefiller, String decoder) {
        Scenario scenario = world.scenario();
        String transferId = "t" + ++lastTransfer;
        int tokens = scenario.pageTokens() + 1;
        world.trace().add("router", "request", transferId + " after all, from " + prefiller + " to " + decoder);
        world.listener()
                .requestRouted(transferId, scenario.messengersOf(prefiller), scenario.messengersOf(decoder), true);
        world.enqueue(prefiller, transferId, tokens);
        for (String name : scenario.messengersOf(decoder)) {
            world.process(name).engine.decode(transferId, addresses(scenario.messengersOf(prefiller)), tokens, false);
        }
    }

    private static List<PrefillerAddress> addresses(List<String> names) {
        return names.stream().map(name -> new PrefillerAddress(name, 1, "")).toList();
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
        List<String> prefillers = scenario.messengersOf(prefiller);
        List<String> decoders = scenario.messengersOf(decoder);
        world.listener()
                .requestRouted(
                        transferId,
                        prefillLeg || decoderFirst ? prefillers : List.of(),
                        decodeLeg ? decoders : List.of(),
                        false);
        if (prefillLeg) {
            world.clock().after(legDelayNs(), () -> world.enqueue(prefiller, transferId, prefillTokens));
        }
        if (decodeLeg) {
            List<PrefillerAddress> named = addresses(decoderFirst ? prefillers : forgetOne(prefillers));
            for (String name : decoders) {
                world.clock().after(legDelayNs(), () -> {
                    SimulatedProcess process = world.process(name);
                    if (process != null) {
                        process.engine.decode(transferId, named, tokens, decoderFirst);
                    }
                });
            }
        }
    }

    /** A router that knows all but one of an engine's messengers. */
    private List<String> forgetOne(List<String> names) {
        double rate = world.scenario().swarm().forgottenMessenger();
        if (names.size() == 1 || rate == 0 || random.nextDouble() >= rate) {
            return names;
        }
        List<String> some = new ArrayList<>(names);
        some.remove(random.nextInt(some.size()));
        return some;
    }

    private long legDelayNs() {
        return random.nextInt(4) == 0 ? random.nextLong(20 * Scenario.MILLI) : random.nextLong(Scenario.MILLI);
    }
}
