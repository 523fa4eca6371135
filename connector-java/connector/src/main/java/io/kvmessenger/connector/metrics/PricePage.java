package io.kvmessenger.connector.metrics;

import io.kvmessenger.connector.boot.Json;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Answers {@code /price?peer=HOST:PORT&tokens=N}: what that many tokens take from that engine, and computed here.
 *
 * <p>Pure functions of the query and the board; the query is untrusted.
 */
final class PricePage {
    private static final Pattern PEER = Pattern.compile(
            "(?:[^\\s\\[\\]:,/]{1,255}|\\[[0-9a-fA-F:.]{2,64}(?:%[0-9a-zA-Z._-]{1,16})?]):([0-9]{1,5})");
    private static final Pattern TOKENS = Pattern.compile("[0-9]{1,10}");
    private static final Pattern UNPRINTABLE = Pattern.compile("[^\\x20-\\x7e]");
    private static final int PORT_MAX = 65_535;
    private static final int SHOWN_MAX = 80;
    private static final String REMEDY = ": ask for /price?peer=10.0.0.7:14579&tokens=2048";

    /** @param problem why it has no body, one sentence; "" if it has one */
    record Answer(String problem, String body) {}

    /** The query cannot be answered; the message is a sentence for the one that has asked. */
    private static final class MalformedException extends Exception {
        private static final long serialVersionUID = 1;

        MalformedException(String option, String value, String expected) {
            super(option + " is " + value + ", expected " + expected + REMEDY);
        }
    }

    private PricePage() {}

    /** @param query what follows the question mark; "" if nothing does */
    static Answer answer(String query, PriceBoard board) {
        try {
            Map<String, String> options = options(query);
            return new Answer("", body(peer(options), tokens(options), board));
        } catch (MalformedException malformed) {
            return new Answer(malformed.getMessage(), "");
        }
    }

    private static String body(String peer, int tokens, PriceBoard board) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("peer", peer);
        fields.put("tokens", tokens);
        var price = board.of(peer, tokens);
        fields.put("known", price.isPresent() && price.get().known());
        price.ifPresent(of -> {
            fields.put("dead", of.dead());
            fields.put("transfer_seconds", of.total());
            fields.put("open_seconds", of.open());
            fields.put("answer_seconds", of.answer());
            fields.put("queue_seconds", of.queue());
            fields.put("move_seconds", of.move());
        });
        board.computeSeconds(tokens).ifPresent(seconds -> fields.put("compute_seconds", seconds));
        return new String(Json.bytes(fields), StandardCharsets.UTF_8) + "\n";
    }

    private static Map<String, String> options(String query) throws MalformedException {
        Map<String, String> options = new LinkedHashMap<>();
        for (String part : query.split("&", -1)) {
            if (part.isEmpty()) {
                continue;
            }
            String[] both = part.split("=", 2);
            String name = decoded(both[0]);
            if (!name.equals("peer") && !name.equals("tokens")) {
                throw new MalformedException("an option", shown(name), "peer or tokens");
            }
            if (options.put(name, both.length < 2 ? "" : decoded(both[1])) != null) {
                throw new MalformedException(name, "given twice", "it once");
            }
        }
        return options;
    }

    private static String decoded(String text) throws MalformedException {
        try {
            return URLDecoder.decode(text, StandardCharsets.UTF_8);
        } catch (IllegalArgumentException e) {
            throw new MalformedException("the query", "'" + excerpt(text) + "'", "percent signs before two hex digits");
        }
    }

    private static String peer(Map<String, String> options) throws MalformedException {
        String peer = options.get("peer");
        Matcher address = PEER.matcher(peer == null ? "" : peer);
        if (!address.matches() || !isWithin(address.group(1), 1, PORT_MAX)) {
            throw new MalformedException("peer", shown(peer), "HOST:PORT of the other engine's messenger");
        }
        return peer;
    }

    private static int tokens(Map<String, String> options) throws MalformedException {
        String tokens = options.get("tokens");
        if (tokens == null || !TOKENS.matcher(tokens).matches() || !isWithin(tokens, 0, Integer.MAX_VALUE)) {
            throw new MalformedException("tokens", shown(tokens), "an integer from 0 to " + Integer.MAX_VALUE);
        }
        return Integer.parseInt(tokens);
    }

    private static boolean isWithin(String digits, long min, long max) {
        long number = Long.parseLong(digits);
        return min <= number && number <= max;
    }

    private static String shown(String value) {
        return value == null ? "missing" : "'" + excerpt(value) + "'";
    }

    private static String excerpt(String value) {
        String printable = UNPRINTABLE.matcher(value).replaceAll("?");
        return printable.length() <= SHOWN_MAX ? printable : printable.substring(0, SHOWN_MAX) + "...";
    }
}
