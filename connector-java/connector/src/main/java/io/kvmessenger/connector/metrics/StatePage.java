package io.kvmessenger.connector.metrics;

import io.kvmessenger.connector.boot.Json;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.MessengerState.TransferRow;
import java.lang.reflect.RecordComponent;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

/**
 * The state of a messenger as a self-refreshing HTML page, and as JSON. Both use the names of {@link MessengerState}'s
 * components.
 *
 * <p>Pure functions.
 */
final class StatePage {
    static final String HTML = "text/html; charset=utf-8";
    static final String JSON_TYPE = "application/json";

    private static final double NS_PER_SECOND = 1e9;
    private static final String HEAD = """
            <!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
            <title>KV Messenger</title><style>
            body{font:14px system-ui,sans-serif;margin:2em;color:#222}h2{font-size:1.1em;margin:1.5em 0 .3em}
            table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.2em 1em .2em 0;border-bottom:1px solid #ddd}
            th{font-weight:600;color:#555}td{font-variant-numeric:tabular-nums}
            </style></head><body><h1>KV Messenger</h1>
            """;

    private StatePage() {}

    static String json(MessengerState state) {
        return new String(Json.bytes(state), StandardCharsets.UTF_8) + "\n";
    }

    /** @param health why the messenger does not work; "" if it does */
    static String html(MessengerState state, String health) {
        StringBuilder page = new StringBuilder(HEAD);
        page.append("<p>")
                .append(escaped(health.isEmpty() ? "healthy" : health))
                .append("</p>\n");
        table(page, "Peers", state.peers().size(), state.peers());
        table(page, "Fetches", state.fetchCount(), state.fetches());
        table(page, "Prefills", state.prefillCount(), state.prefills());
        table(page, "Grants that wait for their prompt", state.grantCount(), state.grants());
        transfers(page, state.transfers());
        table(page, "Last failures", state.failures().size(), state.failures());
        return page.append("</body></html>\n").toString();
    }

    private static void transfers(StringBuilder page, List<TransferRow> rows) {
        page.append("<h2>Last transfers: ").append(rows.size()).append("</h2>\n");
        if (!rows.isEmpty()) {
            page.append(TransfersPicture.legend(rows)).append(TransfersPicture.svg(rows));
        }
    }

    private static void table(StringBuilder page, String title, int count, List<? extends Record> rows) {
        page.append("<h2>").append(title).append(": ").append(count);
        page.append(count > rows.size() ? ", the oldest " + rows.size() : "").append("</h2>\n");
        if (rows.isEmpty()) {
            return;
        }
        page.append("<table><tr>");
        for (RecordComponent column : rows.getFirst().getClass().getRecordComponents()) {
            page.append("<th>").append(heading(column.getName())).append("</th>");
        }
        page.append("</tr>\n");
        for (Record row : rows) {
            page.append("<tr>");
            for (RecordComponent column : row.getClass().getRecordComponents()) {
                page.append("<td>")
                        .append(cell(column.getName(), Json.value(row, column)))
                        .append("</td>");
            }
            page.append("</tr>\n");
        }
        page.append("</table>\n");
    }

    /** {@code waitsFor} becomes "waits for"; a unit that the cell shows is removed. */
    private static String heading(String name) {
        return name.replaceFirst("Ns$", "").replaceAll("([A-Z])", " $1").toLowerCase(Locale.ROOT);
    }

    private static String cell(String name, Object value) {
        if (value instanceof List<?> lines) {
            return lines.stream().map(line -> escaped(line.toString())).collect(Collectors.joining("<br>"));
        }
        return name.endsWith("Ns")
                ? String.format(Locale.ROOT, "%.3f s", (Long) value / NS_PER_SECOND)
                : escaped(value.toString());
    }

    static String escaped(String text) {
        return text.replace("&", "&amp;")
                .replace("<", "&lt;")
                .replace(">", "&gt;")
                .replace("\"", "&quot;");
    }
}
