package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * What a run measures. A value; both processes parse the same arguments.
 *
 * @param provider of libfabric; empty for its first
 * @param batchPages pages in one request of op paged
 * @param seconds duration of the measurement; 0 = {@code rounds} decide
 * @param hosts addresses of this process: it listens on the first, and if there are several all are its data hosts
 * @param targetHosts the same for the target
 * @param beside a file with the arguments of another run in this process; empty for none
 * @param dial HOST:PORT where the target listens on another host; empty if this process starts the target
 * @param targetPrefix prefix of the target's command line
 */
record KvPerfOptions(
        String transport,
        String provider,
        Op op,
        int pageBytes,
        int pageCount,
        int batchPages,
        long poolBytes,
        int inFlight,
        int streams,
        int rounds,
        int seconds,
        ThreadingMode threading,
        int workers,
        int peers,
        long seed,
        boolean check,
        boolean yardstick,
        boolean turns,
        TrafficClass trafficClass,
        String beside,
        List<String> hosts,
        List<String> targetHosts,
        String dial,
        List<String> targetPrefix,
        String output) {

    /** What is timed. */
    enum Op {
        /** One write per page. */
        SINGLE("single"),
        /** Paged writes of {@code batchPages} pages. */
        PAGED("paged"),
        /** Single writes back and forth, one at a time: the time until the target has seen one. */
        PINGPONG("pingpong");

        final String word;

        Op(String word) {
            this.word = word;
        }
    }

    /** Largest number of pings in a round: each has a window of its own. */
    static final int PING_COUNT_MAX = 2048;

    private static final int PEERS_MAX = 64;
    private static final String LOOPBACK = "127.0.0.1";

    static final String HELP = """
            kvperf: writes pages from this process into another one through the TransferEngine.

              --transport shm|tcp|libfabric|verbs
                                      how (shm)
              --provider NAME         of libfabric's, as fi_info calls it (the first that it offers)
              --op single|paged|pingpong
                                      one write a page; paged writes; or single writes to and fro, one at a time (paged)
              --page-bytes N          length of a page (65536)
              --page-count N          pages moved in a round (256 MiB worth; pingpong: 1000)
              --batch-pages N         pages in one request of op paged (1 MiB worth)
              --pool-bytes N          pages are drawn at random from pools of this size, on both sides (536870912)
              --in-flight N           requests not yet completed (16; pingpong: always 1)
              --streams N             data sockets of transport tcp (the engine's default)
              --rounds N              measured clean rounds, after one untimed pass over the pool (11)
              --seconds N             measure for that long instead
              --threading own|caller  which thread moves the bytes: one of the engine's own, or the one that submits
                                      and polls (as a messenger does: caller with fewer than 4 cores)
              --workers N             threads of each engine over which peers are spread (1)
              --peers N               times that the two engines are connected; requests go to each in turn (1; pingpong:
                                      always 1)
              --seed N                of the choice of pages (1)
              --check                 compare every byte of every round
              --yardstick             run a C program doing the same work interleaved with ours (not for pingpong)
              --turns                 a round for each empty line of standard input, answered by its duration and CPU
                                      time in ns: see connector-java/benchmarks/beside
              --traffic CLASS         urgent, normal or bulk: which writes go first where several want one link (urgent)
              --beside FILE           with --turns: another run in this process, with an engine and a target of its own, whose
                                      arguments FILE has, one a line; its rounds follow each other from a + on standard
                                      input to a -
              --hosts A,B             addresses of this process: the first to listen on, all for data (127.0.0.1)
              --target-hosts A,B      the same of the target (127.0.0.1)
              --listen HOST:PORT      alone: be the target of whatever dials there, one run after the other, until interrupted
              --dial HOST:PORT        the target is what listens there, and gets these options; --hosts and --target-hosts are the
                                      two addresses of this connection. A round then lasts until the target's word
                                      that all has come is here: the clocks of two hosts do not compare
              --target-prefix WORDS   what the target is started by, as "ip netns exec NAME" ()
              --output FILE           append the JSON line to FILE too

            A round is clean when other programmes had at most a tenth of the cores; others are repeated, up to three
            times as many rounds in all. Bytes may carry a suffix K, M or G (powers of 1024). GB are decimal. A round lasts from its first submit
            until the target has counted every page. p50 and p99 are of requests, submit to local completion; of
            pingpong they are half the way to and fro, so the time until the other side has seen a write.
            """;

    private static final List<String> FLAGS = List.of("--check", "--yardstick", "--turns");

    /** @throws IllegalArgumentException with one sentence for the user */
    static KvPerfOptions parse(String[] args) {
        Map<String, String> given = collect(args);
        Op op = parseOp(given.getOrDefault("--op", "paged"));
        int pageBytes = (int) number(given, "--page-bytes", 64 << 10, 8, 1 << 30);
        long poolBytes = number(given, "--pool-bytes", 512L << 20, pageBytes, 1L << 40);
        boolean pingpong = op == Op.PINGPONG;
        long poolPages = Math.min(poolBytes / pageBytes, Integer.MAX_VALUE);
        long pageMax = pingpong ? Math.min(PING_COUNT_MAX, poolPages) : poolPages;
        long pageDefault = Math.clamp(pingpong ? 1000 : (256L << 20) / pageBytes, 1, pageMax);
        int pageCount = (int) number(given, "--page-count", pageDefault, 1, pageMax);
        if (pageBytes % Long.BYTES != 0) {
            throw new IllegalArgumentException("--page-bytes is " + pageBytes + ", expected a multiple of 8");
        }
        KvPerfOptions options = new KvPerfOptions(
                parseTransport(given.getOrDefault("--transport", "shm")),
                given.getOrDefault("--provider", ""),
                op,
                pageBytes,
                pageCount,
                (int) number(given, "--batch-pages", Math.max(1, (1 << 20) / pageBytes), 1, 1 << 20),
                poolBytes,
                pingpong ? 1 : (int) number(given, "--in-flight", 16, 1, 1 << 16),
                (int) number(
                        given,
                        "--streams",
                        TcpTransport.STREAMS_PER_PEER.byDefault(),
                        1,
                        TcpTransport.STREAMS_PER_PEER_MAX),
                (int) number(given, "--rounds", 11, 1, 1_000_000),
                (int) number(given, "--seconds", 0, 0, 86_400),
                parseThreading(given),
                (int) number(given, "--workers", 1, 1, TransferOptions.WORKERS_MAX),
                pingpong ? 1 : (int) number(given, "--peers", 1, 1, PEERS_MAX),
                number(given, "--seed", 1, 0, Long.MAX_VALUE),
                given.containsKey("--check"),
                given.containsKey("--yardstick") && !pingpong,
                given.containsKey("--turns"),
                parseTraffic(given.getOrDefault("--traffic", "urgent")),
                given.getOrDefault("--beside", ""),
                words(given, "--hosts", ",", LOOPBACK),
                words(given, "--target-hosts", ",", LOOPBACK),
                given.getOrDefault("--dial", ""),
                words(given, "--target-prefix", " ", ""),
                given.getOrDefault("--output", ""));
        requireKnown(given);
        if (!options.dial().isEmpty() && options.yardstick()) {
            throw new IllegalArgumentException(
                    "--yardstick is of one host, and --dial is given: leave one of the two out");
        }
        if (!pingpong && options.peers() > options.requestCount()) {
            throw new IllegalArgumentException("--peers is " + options.peers() + ", expected at most "
                    + options.requestCount() + ", the requests of a round");
        }
        return options;
    }

    int poolPages() {
        return (int) (poolBytes / pageBytes);
    }

    private int requestPages() {
        return op == Op.SINGLE ? 1 : batchPages;
    }

    /** Requests of a round, except for op pingpong. */
    int requestCount() {
        return Math.ceilDiv(pageCount, requestPages());
    }

    /** Number of a round's pages that go to one of the peers, which are served in rotation. */
    long pagesOf(int peer) {
        long pages = 0;
        for (int request = peer; request < requestCount(); request += peers) {
            pages += Math.min(requestPages(), pageCount - request * requestPages());
        }
        return pages;
    }

    long roundBytes() {
        return (long) pageCount * pageBytes;
    }

    /** Smallest number of rounds that touch every page of both pools once, so that no page fault is measured. */
    int warmUpRounds() {
        return Math.ceilDiv(poolPages(), pageCount) + (op == Op.PINGPONG ? 0 : 1);
    }

    private static Map<String, String> collect(String[] args) {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i < args.length; i++) {
            if (FLAGS.contains(args[i])) {
                given.put(args[i], "");
            } else if (i + 1 < args.length) {
                given.put(args[i], args[++i]);
            } else {
                throw new IllegalArgumentException(
                        args[i] + " is unknown or lacks a value: run kvperf with --help for the options");
            }
        }
        return given;
    }

    private static final List<String> KNOWN = List.of(
            "--transport",
            "--provider",
            "--op",
            "--page-bytes",
            "--page-count",
            "--batch-pages",
            "--pool-bytes",
            "--in-flight",
            "--streams",
            "--rounds",
            "--seconds",
            "--threading",
            "--workers",
            "--peers",
            "--seed",
            "--check",
            "--yardstick",
            "--turns",
            "--traffic",
            "--beside",
            "--hosts",
            "--target-hosts",
            "--dial",
            "--target-prefix",
            "--output");

    private static void requireKnown(Map<String, String> given) {
        List<String> unknown = new ArrayList<>(given.keySet());
        unknown.removeAll(KNOWN);
        if (!unknown.isEmpty()) {
            throw new IllegalArgumentException(
                    unknown.getFirst() + " is unknown: run kvperf with --help for the options");
        }
    }

    private static List<String> words(Map<String, String> given, String name, String between, String otherwise) {
        String text = given.getOrDefault(name, otherwise);
        return text.isEmpty() ? List.of() : List.of(text.split(between, -1));
    }

    private static Op parseOp(String word) {
        for (Op op : Op.values()) {
            if (op.word.equals(word)) {
                return op;
            }
        }
        throw new IllegalArgumentException("--op is \"" + word + "\", expected single, paged or pingpong");
    }

    private static ThreadingMode parseThreading(Map<String, String> given) {
        String word = given.get("--threading");
        return switch (word) {
            case null -> ThreadingMode.forCores(Runtime.getRuntime().availableProcessors());
            case "own" -> ThreadingMode.OWN_THREAD;
            case "caller" -> ThreadingMode.CALLER;
            default -> throw new IllegalArgumentException("--threading is \"" + word + "\", expected own or caller");
        };
    }

    private static TrafficClass parseTraffic(String word) {
        for (TrafficClass trafficClass : TrafficClass.values()) {
            if (trafficClass.name().toLowerCase(Locale.ROOT).equals(word)) {
                return trafficClass;
            }
        }
        throw new IllegalArgumentException("--traffic is \"" + word + "\", expected urgent, normal or bulk");
    }

    private static String parseTransport(String word) {
        if (!List.of(TransferOptions.SHM, TransferOptions.TCP, TransferOptions.LIBFABRIC, TransferOptions.VERBS)
                .contains(word)) {
            throw new IllegalArgumentException(
                    "--transport is \"" + word + "\", expected shm, tcp, libfabric or verbs");
        }
        return word;
    }

    private static long number(Map<String, String> given, String name, long otherwise, long min, long max) {
        String text = given.get(name);
        if (text == null) {
            return otherwise;
        }
        int shift = text.isEmpty() ? 0 : 10 * (1 + "KMG".indexOf(text.charAt(text.length() - 1)));
        String digits = shift == 0 ? text : text.substring(0, text.length() - 1);
        try {
            long value = Math.multiplyExact(Long.parseLong(digits), 1L << shift);
            if (value >= min && value <= max) {
                return value;
            }
        } catch (NumberFormatException | ArithmeticException e) {
            // Falls through to the one sentence for both cases.
        }
        throw new IllegalArgumentException(name + " is \"" + text + "\", expected a number from " + min + " to " + max);
    }
}
