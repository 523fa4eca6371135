package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;

/**
 * Sends requests to prefillers and decoders: both legs in any order, only the decoder's, or with one leg lost. After
 * all faults it sends one request for each pair of engines, whose KV has to arrive.
 */
final class Router {
    private static final long BURST_PERIOD_NS = 50 * Scenario.MILLI;
    private static final long BURST_NS = Scenario.MILLI / 2;

    private static final int NO_LEG = 0;
    /** Requests to more decoders than so many follow each other. */
    private static final int AT_ONCE_MAX = 64;

    private static final long SPACE_NS = 200 * Scenario.MICRO;

    /** @param tokens number that the decoder requests */
    private record Request(TransferKey transfer, int tokens, boolean decoderFirst) {}

    private final Simulation world;
    private final SplittableRandom random;
    /** Source of the decisions that {@link Traffic} describes. */
    private final SplittableRandom ids;
    /** Requests whose id, or prompt and id, may be used again. */
    private final List<Request> earlier = new ArrayList<>();

    private int lastTransfer;

    Router(Simulation world, SplittableRandom random) {
        this.world = world;
        this.random = random;
        this.ids = new SplittableRandom(world.scenario().seed() * 0x589965CC75374CC3L + 1);
        for (int i = 0; i < world.scenario().requestCount(); i++) {
            world.clock().at(inBursts(random.nextLong(Scenario.SAFETY_NS)), this::send);
        }
    }

    /** In half of all runs many requests arrive at the same time, so that one pass begins several of them. */
    private long inBursts(long atNs) {
        return world.scenario().seed() % 2 == 0 ? atNs - atNs % BURST_PERIOD_NS + atNs % BURST_NS : atNs;
    }

    /** Sends both legs between each prefiller and each decoding engine. */
    void sendBetweenAll() {
        Scenario scenario = world.scenario();
        for (int p = 0; p < scenario.prefillerCount(); p++) {
            for (int d = 0; d < scenario.decoderCount(); d++) {
                String prefiller = "P" + p;
                String decoder = "D" + d;
                if (d < AT_ONCE_MAX) {
                    sendBetween(prefiller, decoder);
                } else {
                    world.clock().after(d * SPACE_NS, () -> sendBetween(prefiller, decoder));
                }
            }
            if (scenario.bothRoles()) {
                sendBetween("P" + p, p == 0 ? "P1" : "P0");
            }
        }
    }

    /** How long it takes to send all of these. */
    long spreadNs() {
        int decoders = world.scenario().decoderCount();
        return decoders > AT_ONCE_MAX ? decoders * SPACE_NS : 0;
    }

    /**
     * Sends the combinations that the run's traffic includes: concurrent requests, equal ids, requests after a
     * rejection. A rejection shortens the wait for grants of prefills with its id, so none is sent where others share
     * the id, or the decoder's pages.
     */
    private void sendBetween(String prefiller, String decoder) {
        Traffic traffic = world.scenario().traffic();
        TransferKey transfer = newTransfer();
        if (traffic.rejected() > 0
                && traffic.askedAgain() + traffic.idsTaken() == 0
                && !world.scenario().bothRoles()) {
            List<PrefillerAddress> named = addresses(world.scenario().messengersOf(prefiller));
            world.scenario().messengersOf(decoder).forEach(node -> reject(node, transfer, named));
        }
        sendBetween(transfer, prefiller, decoder);
        if (traffic.askedAgain() > 0) {
            sendBetween(transfer, prefiller, decoder);
        }
        if (traffic.idsTaken() > 0) {
            sendBetween(PromptName.key(transfer.id(), newName()), prefiller, decoder);
        }
    }

    private void sendBetween(TransferKey transfer, String prefiller, String decoder) {
        Scenario scenario = world.scenario();
        String name = PromptName.of(transfer);
        int tokens = scenario.pageTokens() + 1;
        world.trace().add("router", "request", name + " after all, from " + prefiller + " to " + decoder);
        world.listener().requestRouted(name, scenario.messengersOf(prefiller), scenario.messengersOf(decoder), true);
        world.enqueue(prefiller, transfer, tokens);
        for (String node : scenario.messengersOf(decoder)) {
            world.process(node).engine.decode(transfer, addresses(scenario.messengersOf(prefiller)), tokens, false);
        }
    }

    private static List<PrefillerAddress> addresses(List<String> names) {
        return names.stream().map(name -> new PrefillerAddress(name, 1, "")).toList();
    }

    private String newName() {
        return "t" + ++lastTransfer;
    }

    /** A prompt under an id of its own. */
    private TransferKey newTransfer() {
        String name = newName();
        return world.scenario().traffic().digests() ? PromptName.key(name, name) : new TransferKey(name, "");
    }

    private void send() {
        Scenario scenario = world.scenario();
        Swarm swarm = scenario.swarm();
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
        boolean wrongPrompt = random.nextDouble() < swarm.wrongPrompt();
        Request request = drawRequest(tokens, decoderFirst);
        route(
                request,
                prefiller,
                decoder,
                prefillLeg ? request.tokens + (wrongPrompt ? 1 : 0) : NO_LEG,
                decodeLeg,
                decodeLeg && drawRejection(request));
    }

    /** A new prompt, perhaps under an earlier one's id, in whatever state its prefill is; or an earlier prompt. */
    private Request drawRequest(int tokens, boolean decoderFirst) {
        Traffic traffic = world.scenario().traffic();
        boolean again = ids.nextDouble() < traffic.askedAgain();
        boolean idTaken = ids.nextDouble() < traffic.idsTaken();
        Request before = earlier.isEmpty() ? null : earlier.get(ids.nextInt(earlier.size()));
        if (before != null && again && !decoderFirst) {
            return before;
        }
        TransferKey own = newTransfer();
        Request request = new Request(
                before != null && idTaken ? PromptName.key(before.transfer.id(), PromptName.of(own)) : own,
                tokens,
                decoderFirst);
        if (!decoderFirst) {
            earlier.add(request);
        }
        return request;
    }

    /** In runs with timed ends, the id of a rejected request must be unique: a rejection names only an id. */
    private boolean drawRejection(Request request) {
        boolean rejected = ids.nextDouble() < world.scenario().traffic().rejected() && !request.decoderFirst;
        if (!rejected || !world.scenario().traffic().timed()) {
            return rejected;
        }
        boolean ownId = PromptName.of(request.transfer).equals(request.transfer.id());
        return ownId && earlier.remove(request);
    }

    /** @param prefillTokens number that the prefiller is told, or {@link #NO_LEG} */
    private void route(
            Request request, String prefiller, String decoder, int prefillTokens, boolean decodeLeg, boolean rejected) {
        Scenario scenario = world.scenario();
        String name = PromptName.of(request.transfer);
        boolean decodes = decodeLeg && (!rejected || (!scenario.traffic().timed() && ids.nextInt(3) > 0));
        boolean prefillLeg = prefillTokens != NO_LEG;
        world.trace()
                .add(
                        "router",
                        decodes ? "request" : "half",
                        name + " as " + request.transfer.id() + ", " + request.tokens + " tokens"
                                + (prefillLeg ? " " + prefiller : "")
                                + (decodes ? " " + decoder : "") + (rejected ? " rejected" : "")
                                + (request.decoderFirst ? " decoder first" : ""));
        List<String> prefillers = scenario.messengersOf(prefiller);
        List<String> decoders = scenario.messengersOf(decoder);
        world.listener()
                .requestRouted(
                        name,
                        prefillLeg || request.decoderFirst ? prefillers : List.of(),
                        decodes ? decoders : List.of(),
                        false);
        if (prefillLeg) {
            world.clock().after(legDelayNs(), () -> world.enqueue(prefiller, request.transfer, prefillTokens));
        }
        List<PrefillerAddress> named = addresses(request.decoderFirst ? prefillers : forgetOne(prefillers));
        for (String node : decodeLeg ? decoders : List.<String>of()) {
            long atNs = legDelayNs();
            if (rejected) {
                world.clock().after(atNs, () -> reject(node, request.transfer, named));
                atNs += legDelayNs();
            }
            if (decodes) {
                world.clock().after(atNs, () -> decode(node, request, named));
            }
        }
    }

    private void decode(String node, Request request, List<PrefillerAddress> named) {
        SimulatedProcess process = world.process(node);
        if (process != null) {
            process.engine.decode(request.transfer, named, request.tokens, request.decoderFirst);
        }
    }

    private void reject(String node, TransferKey transfer, List<PrefillerAddress> named) {
        SimulatedProcess process = world.process(node);
        if (process != null) {
            process.engine.reject(transfer.id(), named);
        }
    }

    /** Simulates a router that knows all but one of an engine's messengers. */
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
