package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.engine.EngineLimits;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * Everything about a run that is drawn before it starts: shapes, limits, faults. A value.
 *
 * @param weather which of the drawn faults are active
 * @param prefillerGeometries one for each messenger of a prefiller's engine
 * @param decoderGeometries one for each messenger of a decoder's engine
 * @param announces whether prefillers announce prompts and wait for grants, as SGLang does
 * @param bothRoles whether prefillers also decode what other prefillers compute
 * @param workerCount of each transfer engine
 * @param devicesWrite whether prefillers' pages are in device memory, and gathered from there
 * @param hardships what the run has beside what its seed draws
 */
record Scenario(
        long seed,
        Weather weather,
        int prefillerCount,
        int decoderCount,
        int requestCount,
        FabricKind fabric,
        EngineLimits engineLimits,
        int workerCount,
        String secret,
        List<KvGeometry> prefillerGeometries,
        List<KvGeometry> decoderGeometries,
        boolean bothRoles,
        ProtocolLimits limits,
        ChecksumMode checksumMode,
        boolean announces,
        Traffic traffic,
        Lanes lanes,
        Fall fall,
        boolean devicesWrite,
        Swarm swarm,
        Hardships hardships) {
    static final long MICRO = 1_000;
    static final long MILLI = 1_000_000;

    /** End of faults and new requests; then everything heals. */
    static final long SAFETY_NS = 400 * MILLI;
    /** Time without faults after which everything must have ended: a generous multiple of all limits. */
    static final long LIVENESS_NS = 4_000 * MILLI;

    private static final int SLOTS_ENOUGH = 64;
    private static final int SLOTS_FEW = 8;
    /** Fewest windows before an immediate repeats, as a writer's end of a transfer may be later than its target's. */
    private static final int IMMS_MIN = 16;

    private static final int COMPLETIONS_FEW = 256;
    private static final int COMPLETIONS_MANY = 4096;
    private static final int PEERS_ENOUGH = 64;
    private static final int QUEUE_LONG = 64;
    /** What a messenger keeps is up to this much more than what it needs. */
    private static final int FEW = 7;
    /** Requests that {@link Router} sends from one engine to another at the same moment, after all faults. */
    private static final int REQUESTS_AT_ONCE_MAX = 3;
    /** One in this many runs has engines with several workers. */
    private static final int WORKERS_ONE_IN = 3;

    private static final int WORKERS_MAX = 3;
    /** One in this many runs over tcp has device memory at its targets; of all runs, as many at their sources. */
    private static final int STAGED_ONE_IN = 3;

    /** Which faults of a run are active. */
    enum Weather {
        /** All that were drawn. */
        FAULTY,
        /** Only those of engines, clients and routers. */
        SOUND,
        /** None: everything has to arrive. */
        QUIET
    }

    /** RDM is drawn separately, so that the seeds of older bugs still reproduce them. */
    private static final List<FabricKind> FABRICS_DRAWN_FIRST =
            List.of(FabricKind.TCP, FabricKind.RDMA, FabricKind.SHARED_MEMORY);

    static Scenario draw(long seed, Weather weather) {
        return draw(seed, weather, true);
    }

    /** The same with single-rank engines of one role each. */
    static Scenario drawAlone(long seed, Weather weather) {
        return draw(seed, weather, false);
    }

    private static Scenario draw(long seed, Weather weather, boolean shardable) {
        SplittableRandom random = new SplittableRandom(seed * 0x9E3779B97F4A7C15L + 1);
        SplittableRandom checksums = new SplittableRandom(seed * 0xA0761D6478BD642FL + 1);
        SplittableRandom fabrics = new SplittableRandom(seed * 0xEB44ACCAB455D165L + 1);
        SplittableRandom engines = new SplittableRandom(seed * 0x8CB92BA72F3D8DD7L + 1);
        SplittableRandom shards = new SplittableRandom(seed * 0xD1B54A32D192ED03L + 1);
        SplittableRandom lanes = new SplittableRandom(seed * 0x1D8E4E27C47D124FL + 1);
        SplittableRandom falls = new SplittableRandom(seed * 0xD6E8FEB86659FD93L + 1);
        SplittableRandom traffic = new SplittableRandom(seed * 0xE7037ED1A0B428DBL + 1);
        SplittableRandom devices = new SplittableRandom(seed * 0xF1357AEA2E62A9C5L + 1);
        SplittableRandom workers = new SplittableRandom(seed * 0xC2B2AE3D27D4EB4FL + 1);
        SplittableRandom kept = new SplittableRandom(seed * 0xA24BAED4963EE407L + 1);
        boolean announces = seed % 3 == 0 && weather != Weather.SOUND; // the wait of an announced prompt is unbounded
        ModelShape model = drawModel(random, seed, shardable);
        boolean sharded = shards.nextBoolean() && shardable;
        boolean bothRoles = shards.nextInt(4) == 0 && weather != Weather.QUIET && shardable;
        int prefillerCount = 1 + random.nextInt(2);
        int decoderCount = 1 + random.nextInt(2);
        int requestCount = 4 + random.nextInt(40);
        FabricKind drawn = FABRICS_DRAWN_FIRST.get(random.nextInt(FABRICS_DRAWN_FIRST.size()));
        FabricKind overNetwork = fabrics.nextInt(4) == 0 ? FabricKind.RDM : drawn;
        FabricKind fabric =
                overNetwork == FabricKind.TCP && devices.nextInt(STAGED_ONE_IN) == 0 ? FabricKind.STAGED : overNetwork;
        boolean devicesWrite = devices.nextInt(STAGED_ONE_IN) == 0 && shardable;
        int slotCount = random.nextInt(3) == 0 ? 2 + random.nextInt(4) : SLOTS_ENOUGH;
        boolean reusedSoon = random.nextBoolean();
        Lanes drawnLanes = shardable ? Lanes.draw(lanes, fabric) : Lanes.ONE;
        int queueLimit = Integer.highestOneBit(1 + random.nextInt(8));
        String secret = random.nextBoolean() ? "secret" : "";
        List<KvGeometry> prefillerGeometries = model.drawEngine(random, shards, sharded);
        List<KvGeometry> decoderGeometries = model.drawEngine(random, shards, sharded);
        int peers = decoderCount * decoderGeometries.size() + (bothRoles ? 2 * prefillerGeometries.size() : 0);
        int grantBytes = grantBytes(prefillerGeometries, decoderGeometries);
        boolean few = weather == Weather.FAULTY && shardable;
        return new Scenario(
                seed,
                weather,
                bothRoles ? 2 : prefillerCount,
                decoderCount,
                requestCount,
                fabric,
                engineLimits(weather, queueLimit, reusedSoon ? Math.min(slotCount, SLOTS_FEW) : slotCount, engines),
                shardable ? drawWorkerCount(workers) : 1,
                secret,
                prefillerGeometries,
                decoderGeometries,
                bothRoles,
                limits(weather).with(few ? drawFew(peers, grantBytes, kept) : drawLimitless(kept)),
                devicesWrite ? ChecksumMode.OFF : drawChecksums(checksums), // device memory is not checksummed
                announces,
                shardable ? Traffic.draw(traffic, weather, announces) : Traffic.PLAIN,
                drawnLanes,
                shardable && weather != Weather.SOUND ? Fall.draw(falls, drawnLanes) : Fall.NONE,
                devicesWrite,
                drawSwarm(weather, random),
                Hardships.NONE);
    }

    private static Swarm drawSwarm(Weather weather, SplittableRandom random) {
        return switch (weather) {
            case FAULTY -> Swarm.draw(random);
            case SOUND -> Swarm.sound(random);
            case QUIET -> Swarm.quiet(random);
        };
    }

    private static ChecksumMode drawChecksums(SplittableRandom random) {
        return List.of(ChecksumMode.values()).get(random.nextInt(ChecksumMode.values().length));
    }

    private static int drawWorkerCount(SplittableRandom random) {
        return random.nextInt(WORKERS_ONE_IN) == 0 ? random.nextInt(2, WORKERS_MAX + 1) : 1;
    }

    private static ModelShape drawModel(SplittableRandom random, long seed, boolean shardable) {
        PageLayout layout = switch (random.nextInt(3)) {
            case 0 -> PageLayout.HND;
            case 1 -> PageLayout.NHD;
            default -> PageLayout.LATENT;
        };
        int heads = layout == PageLayout.LATENT ? 1 : 1 << random.nextInt(3);
        int pageTokens = 1 << random.nextInt(4);
        List<Integer> bytesPerToken = new ArrayList<>();
        int layerCount = 1 + random.nextInt(6);
        for (int i = 0; i < layerCount; i++) {
            bytesPerToken.add(1 + random.nextInt(3));
        }
        ModelShape.Group first = new ModelShape.Group(layout, heads, pageTokens);
        SplittableRandom groups = new SplittableRandom(seed * 0x9FB21C651E98DF25L + 1);
        return new ModelShape(
                shardable ? ModelShape.drawGroups(first, layerCount, groups) : List.of(first), bytesPerToken);
    }

    /** Few slots only with all faults: the wait of a fetch for a slot is unbounded, and prompts wait for it. */
    private static EngineLimits engineLimits(Weather weather, int queueLimit, int slotCount, SplittableRandom random) {
        return switch (weather) {
            case FAULTY -> engineLimits(queueLimit, slotCount, random);
            case SOUND -> engineLimits(QUEUE_LONG, SLOTS_ENOUGH, random);
            case QUIET -> engineLimits(queueLimit, SLOTS_ENOUGH, random);
        };
    }

    /** Often very small, so that slots are reused soon, generations wrap and queues fill up. */
    private static EngineLimits engineLimits(int requestsPerPeer, int slotCount, SplittableRandom random) {
        int generationsFew = Math.ceilDiv(IMMS_MIN, slotCount) + random.nextInt(3);
        int generations = random.nextBoolean() ? Imm.GENERATION_COUNT : generationsFew;
        int completions = slotCount < SLOTS_ENOUGH && random.nextBoolean() ? COMPLETIONS_FEW : COMPLETIONS_MANY;
        return new EngineLimits(requestsPerPeer, slotCount + 1, generations, completions, PEERS_ENOUGH);
    }

    /**
     * As little as a prefiller may keep while each of its decoders still gets what must arrive after all faults; before
     * that, requests exceed it.
     *
     * @param peers messengers that decode
     * @param grantBytes of the page lists of a request after all faults
     */
    private static Capacities drawFew(int peers, int grantBytes, SplittableRandom random) {
        int requests = REQUESTS_AT_ONCE_MAX * peers;
        return new Capacities(
                peers + random.nextInt(FEW),
                peers + random.nextInt(FEW),
                ProtocolLimits.DECODERS_KEPT,
                REQUESTS_AT_ONCE_MAX + random.nextInt(FEW),
                requests + random.nextInt(FEW),
                (long) REQUESTS_AT_ONCE_MAX * (grantBytes + random.nextInt(grantBytes)),
                (long) requests * (grantBytes + random.nextInt(grantBytes)),
                2 + random.nextInt(FEW),
                1 + random.nextInt(FEW));
    }

    /** At most, of the page lists of a request for one token more than a block has. */
    private static int grantBytes(List<KvGeometry> prefillers, List<KvGeometry> decoders) {
        int pages = Stream.concat(prefillers.stream(), decoders.stream())
                .mapToInt(geometry -> geometry.groups().stream()
                        .mapToInt(group -> group.pagesFor(0, new BlockPages(geometry).blockTokens() + 1))
                        .sum())
                .max()
                .orElseThrow();
        return pages * Integer.BYTES;
    }

    /** As in production, but for the checksums of one frame: a run has too few for that limit. */
    private static Capacities drawLimitless(SplittableRandom random) {
        Capacities most = Capacities.PRODUCTION;
        return new Capacities(
                most.handshakesMax(),
                most.decodersMax(),
                most.decodersKept(),
                most.expectedTransfersMax(),
                most.grantsWaitingMax(),
                most.grantBytesWaitingMax(),
                most.grantBytesWaitingAllMax(),
                most.endedTransfersMax(),
                1 + random.nextInt(FEW));
    }

    /** Where everything must arrive, a queue at a busy prefiller may be long, so no limit ends a wait in it. */
    private static ProtocolLimits limits(Weather weather) {
        long queues = weather == Weather.QUIET ? 10 : 1;
        return new ProtocolLimits(queues * 60 * MILLI, queues * 150 * MILLI, 25 * MILLI, 5 * MILLI, 30 * MILLI);
    }

    /** The fetch limit that a decoder's engine sets for one request, if it sets one. */
    long ownFetchLimitNs() {
        return limits.fetchLimitNs() * 4 / 15;
    }

    /** The fetch limit of requests after all faults: long enough never to be the reason for their end. */
    long healedFetchLimitNs() {
        return 4 * limits.fetchLimitNs();
    }

    FabricShape fabricShape() {
        return new FabricShape(fabric, lanes, fall, swarm, false);
    }

    /** How long requests after all faults are queued: longer than a transfer waits for its other side. */
    long queuedNs() {
        return 2 * limits.grantWaitNs();
    }

    /** Compares pages, if they are written from host memory. */
    Scenario with(ChecksumMode mode) {
        return with(fabric, mode, devicesWrite && mode == ChecksumMode.OFF, hardships);
    }

    /** With devices at all sources, or at none. */
    Scenario with(boolean devices) {
        return with(fabric, devices ? ChecksumMode.OFF : checksumMode, devices, hardships);
    }

    /** With the lanes that were drawn for the seed's fabric. */
    Scenario with(FabricKind kind) {
        return with(kind, checksumMode, devicesWrite, hardships);
    }

    /** With these besides. */
    Scenario with(Hardships besides) {
        Scenario beside = with(fabric, checksumMode, devicesWrite, besides);
        return besides.dividesPages() && !bothRoles
                ? beside.fromPrefillersOf(ModelShape.divided(prefillerGeometries, seed))
                : beside;
    }

    /** With these prefillers, if they differ: checksums of pages that ranks divide are refused. */
    private Scenario fromPrefillersOf(List<KvGeometry> geometries) {
        return new Scenario(
                seed,
                weather,
                prefillerCount,
                decoderCount,
                requestCount,
                fabric,
                engineLimits,
                workerCount,
                secret,
                geometries,
                decoderGeometries,
                bothRoles,
                limits,
                geometries.getFirst().hasDividedPages() ? ChecksumMode.OFF : checksumMode,
                announces,
                traffic,
                lanes,
                fall,
                devicesWrite,
                swarm,
                hardships);
    }

    private Scenario with(FabricKind kind, ChecksumMode mode, boolean devices, Hardships besides) {
        return new Scenario(
                seed,
                weather,
                prefillerCount,
                decoderCount,
                requestCount,
                kind,
                engineLimits,
                workerCount,
                secret,
                prefillerGeometries,
                decoderGeometries,
                bothRoles,
                limitsWith(besides),
                mode,
                announces,
                traffic,
                lanes,
                fall,
                devices,
                swarm,
                besides);
    }

    /** One prefiller with so many decoders, and few places for them; nothing goes wrong. */
    static Scenario ofManyDecoders(long seed, int decoders, int places, int kept, int requests) {
        Scenario drawn = drawAlone(seed, Weather.QUIET);
        Capacities most = drawn.limits.capacities();
        Capacities few = new Capacities(
                most.handshakesMax(),
                places,
                kept,
                most.expectedTransfersMax(),
                most.grantsWaitingMax(),
                most.grantBytesWaitingMax(),
                most.grantBytesWaitingAllMax(),
                most.endedTransfersMax(),
                most.checksumsPerFrameMax());
        EngineLimits engine = drawn.engineLimits;
        return new Scenario(
                seed,
                drawn.weather,
                1,
                decoders,
                requests,
                drawn.fabric,
                new EngineLimits(
                        engine.requestsPerPeer(),
                        engine.slots(),
                        engine.generations(),
                        engine.completions(),
                        2 * places),
                drawn.workerCount,
                drawn.secret,
                drawn.prefillerGeometries,
                drawn.decoderGeometries,
                false,
                drawn.limits.with(few),
                drawn.checksumMode,
                drawn.announces,
                drawn.traffic,
                drawn.lanes,
                drawn.fall,
                drawn.devicesWrite,
                drawn.swarm,
                drawn.hardships);
    }

    private ProtocolLimits limitsWith(Hardships besides) {
        ProtocolLimits others = besides.pulls().any() ? limitsOfPulls() : limits;
        return others.with(others.capacities().withDecodersKept(besides.decodersKept()));
    }

    /** Every engine may be asked by every other one, and keeps what it offers for long enough that an early end shows. */
    private ProtocolLimits limitsOfPulls() {
        Capacities kept = limits.capacities();
        return limits.withOfferLimitNs(Pulls.OFFER_LIMIT_NS)
                .with(new Capacities(
                        ProtocolLimits.HANDSHAKES_MAX,
                        ProtocolLimits.DECODERS_MAX,
                        ProtocolLimits.DECODERS_KEPT,
                        kept.expectedTransfersMax(),
                        kept.grantsWaitingMax(),
                        kept.grantBytesWaitingMax(),
                        kept.grantBytesWaitingAllMax(),
                        kept.endedTransfersMax(),
                        kept.checksumsPerFrameMax()));
    }

    /** Whether this messenger of an engine writes from device memory. */
    boolean writesFromDevice(String messenger) {
        return devicesWrite && messenger.startsWith("P");
    }

    /** Whether the build of a node's engine speaks only the version of the protocol before the newest. */
    boolean isOlderBuild(String node) {
        return hardships.pulls().isOlder(engineOf(node), seed);
    }

    /** Names of an engine's messengers, in the order of their geometries; its own name if it has only one. */
    List<String> messengersOf(String engine) {
        int count = geometriesOf(engine).size();
        return count == 1
                ? List.of(engine)
                : IntStream.range(0, count).mapToObj(i -> engine + "." + i).toList();
    }

    /** The engine of a messenger. */
    static String engineOf(String messenger) {
        int dot = messenger.indexOf('.');
        return dot < 0 ? messenger : messenger.substring(0, dot);
    }

    KvGeometry geometryOf(String messenger) {
        String engine = engineOf(messenger);
        return geometriesOf(engine).get(messengersOf(engine).indexOf(messenger));
    }

    private List<KvGeometry> geometriesOf(String engine) {
        return engine.startsWith("P") ? prefillerGeometries : decoderGeometries;
    }

    /** Tokens in the pages that engines schedule. */
    int pageTokens() {
        return new BlockPages(prefillerGeometries.getFirst()).blockTokens();
    }
}
