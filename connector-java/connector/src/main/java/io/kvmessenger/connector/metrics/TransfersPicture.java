package io.kvmessenger.connector.metrics;

import io.kvmessenger.messenger.port.MessengerState.Span;
import io.kvmessenger.messenger.port.MessengerState.TransferRow;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Draws recent transfers as bars on a common time axis: what each waited for, computed and wrote.
 *
 * <p>A pure function to SVG within HTML, without scripts or external resources.
 */
final class TransfersPicture {
    private static final int WIDTH = 1180;
    private static final int ROW_HEIGHT = 24;
    private static final int LABEL_WIDTH = 300;
    private static final int BARS_WIDTH = 620;
    private static final int BASELINE = 15;
    private static final double NS_PER_MS = 1e6;

    /** Writes overlap the forward passes: their narrow bar is drawn inside the wide one. */
    private record Style(String colour, int heightPixels) {}

    private static final Style OTHER = new Style("#999999", 14);
    private static final Map<String, Style> STYLES = Map.of(
            "grant", new Style("#c9c9c9", 14),
            "grant waits", new Style("#c9c9c9", 14),
            "KV", new Style("#3b6fb6", 14),
            "forward passes", new Style("#a9cfa4", 14),
            "writes", new Style("#d9822b", 6));

    /** Longest part of a request's id that is shown; the JSON has all of it. */
    private static final int REQUEST_LENGTH_MAX = 40;

    private TransfersPicture() {}

    static String svg(List<TransferRow> rows) {
        int height = rows.size() * ROW_HEIGHT;
        long scaleNs = rows.stream().mapToLong(TransfersPicture::lengthNs).max().orElse(0);
        StringBuilder svg = new StringBuilder(String.format(
                Locale.ROOT,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-size=\"12\" role=\"img\">\n",
                WIDTH,
                height));
        for (int i = 0; i < rows.size(); i++) {
            row(svg, rows.get(i), i * ROW_HEIGHT, Math.max(1, scaleNs));
        }
        return svg.append("</svg>\n").toString();
    }

    private static void row(StringBuilder svg, TransferRow row, int y, long scaleNs) {
        text(svg, 0, y, cut(row.request()));
        for (Span span : row.spans()) {
            bar(svg, span, y, scaleNs);
        }
        text(
                svg,
                LABEL_WIDTH + BARS_WIDTH + 10,
                y,
                String.format(Locale.ROOT, "%.2f ms, %,d bytes", lengthNs(row) / NS_PER_MS, row.lengthBytes()));
    }

    private static void bar(StringBuilder svg, Span span, int y, long scaleNs) {
        Style style = STYLES.getOrDefault(span.what(), OTHER);
        double x = LABEL_WIDTH + (double) BARS_WIDTH * span.fromNs() / scaleNs;
        double width = Math.max(1, (double) BARS_WIDTH * (span.untilNs() - span.fromNs()) / scaleNs);
        svg.append(String.format(
                Locale.ROOT,
                "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>%s: %.2f ms</title></rect>\n",
                x,
                y + (ROW_HEIGHT - style.heightPixels) / 2,
                width,
                style.heightPixels,
                style.colour,
                StatePage.escaped(span.what()),
                (span.untilNs() - span.fromNs()) / NS_PER_MS));
    }

    private static void text(StringBuilder svg, int x, int y, String given) {
        svg.append(String.format(
                Locale.ROOT, "<text x=\"%d\" y=\"%d\">%s</text>\n", x, y + BASELINE, StatePage.escaped(given)));
    }

    private static long lengthNs(TransferRow row) {
        return row.spans().stream().mapToLong(Span::untilNs).max().orElse(0);
    }

    private static String cut(String request) {
        return request.length() <= REQUEST_LENGTH_MAX
                ? request
                : "…" + request.substring(request.length() - REQUEST_LENGTH_MAX + 1);
    }

    static String legend(List<TransferRow> rows) {
        StringBuilder legend = new StringBuilder("<p>");
        rows.stream()
                .flatMap(row -> row.spans().stream())
                .map(Span::what)
                .distinct()
                .forEach(what -> legend.append("<span style=\"color:")
                        .append(STYLES.getOrDefault(what, OTHER).colour)
                        .append("\">&#9632;</span> ")
                        .append(StatePage.escaped(what))
                        .append(" &nbsp; "));
        return legend.append("</p>\n").toString();
    }
}
