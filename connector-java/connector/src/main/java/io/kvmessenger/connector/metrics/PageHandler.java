package io.kvmessenger.connector.metrics;

import io.kvmessenger.messenger.port.MessengerState;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPipeline;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.handler.codec.DelimiterBasedFrameDecoder;
import io.netty.handler.timeout.ReadTimeoutHandler;
import io.netty.util.concurrent.ScheduledFuture;
import io.prometheus.metrics.expositionformats.ExpositionFormatWriter;
import io.prometheus.metrics.expositionformats.ExpositionFormats;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Answers one request and closes the connection: HTTP/1.1 as far as scrapers and probes need it.
 *
 * <p>Event loop only.
 */
final class PageHandler extends SimpleChannelInboundHandler<ByteBuf> {
    /** Longest request including its headers. */
    static final int REQUEST_LENGTH_MAX_BYTES = 8 << 10;

    private static final int REQUEST_LIMIT_SECONDS = 10;
    /** Limit for the messenger's thread to describe its state; shorter than that of the request, which runs too. */
    private static final int STATE_LIMIT_SECONDS = 5;

    private static final ByteBuf END_OF_HEADERS =
            Unpooled.unreleasableBuffer(Unpooled.copiedBuffer("\r\n\r\n", StandardCharsets.US_ASCII));
    private static final String TEXT = "text/plain; charset=utf-8";
    private static final ExpositionFormats FORMATS = ExpositionFormats.init();

    private final Pages pages;

    private PageHandler(Pages pages) {
        this.pages = pages;
    }

    static void addTo(ChannelPipeline pipeline, Pages pages) {
        pipeline.addLast(new ReadTimeoutHandler(REQUEST_LIMIT_SECONDS))
                .addLast(new DelimiterBasedFrameDecoder(REQUEST_LENGTH_MAX_BYTES, END_OF_HEADERS.duplicate()))
                .addLast(new PageHandler(pages));
    }

    @Override
    protected void channelRead0(ChannelHandlerContext context, ByteBuf head) throws IOException {
        String[] lines = head.toString(StandardCharsets.ISO_8859_1).split("\r\n", -1);
        String[] request = lines[0].split(" ", -1);
        if (request.length != 3 || !request[2].startsWith("HTTP/1.")) {
            answer(context, "400 Bad Request", TEXT, "this is no HTTP request\n", true);
            return;
        }
        String[] target = request[1].split("\\?", 2);
        String path = target[0];
        boolean withBody = !request[0].equals("HEAD");
        if (path.equals("/drain") || path.equals("/undrain")) {
            answerDrain(context, request[0], lines, path.equals("/drain"));
            return;
        }
        if (withBody && !request[0].equals("GET")) {
            answer(context, "405 Method Not Allowed", TEXT, "GET or HEAD\n", true);
            return;
        }
        switch (path) {
            case "/health" -> answerProbe(context, "ok", pages.healthProblem().get(), withBody);
            case "/ready" -> answerProbe(context, "ready", pages.reasonNotReady(), withBody);
            case "/price" -> answerPrice(context, target.length < 2 ? "" : target[1], withBody);
            case "/metrics" -> answerMetrics(context, header(lines, "accept"), withBody);
            case "/" -> answerState(context, lines, StatePage.HTML, withBody);
            case "/state" -> answerState(context, lines, StatePage.JSON_TYPE, withBody);
            default ->
                answer(
                        context,
                        "404 Not Found",
                        TEXT,
                        "the pages are /metrics, /health, /ready, /price, /, /state, /drain and /undrain\n",
                        withBody);
        }
    }

    private void answerProbe(ChannelHandlerContext context, String good, Optional<String> problem, boolean withBody) {
        String status = problem.isEmpty() ? "200 OK" : "503 Service Unavailable";
        answer(context, status, TEXT, problem.orElse(good) + "\n", withBody);
    }

    private void answerPrice(ChannelHandlerContext context, String query, boolean withBody) {
        PricePage.Answer price = PricePage.answer(query, pages.prices());
        if (price.problem().isEmpty()) {
            answer(context, "200 OK", StatePage.JSON_TYPE, price.body(), withBody);
        } else {
            answer(context, "400 Bad Request", TEXT, price.problem() + "\n", withBody);
        }
    }

    /** Refuses requests with an {@code Origin}, as from a page in a browser: none may end this engine's traffic. */
    private void answerDrain(ChannelHandlerContext context, String method, String[] lines, boolean drain) {
        if (!method.equals("POST")) {
            answer(context, "405 Method Not Allowed", TEXT, "POST\n", true);
        } else if (!header(lines, "origin").isEmpty()) {
            answer(context, "403 Forbidden", TEXT, "no page in a browser may ask this\n", true);
        } else if (!PageKey.opens(pages.pageKey(), header(lines, "authorization"))) {
            refuse(context, true);
        } else {
            pages.draining().set(drain);
            String given = drain
                    ? "draining: /ready says so, and open transfers go on to their end\n"
                    : "not draining: /ready says so\n";
            answer(context, "200 OK", TEXT, given, true);
        }
    }

    /** A browser asks for the key on the header; its user's name does not matter. */
    private static void refuse(ChannelHandlerContext context, boolean withBody) {
        answer(
                context,
                "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"kv-messenger\"",
                TEXT,
                "this needs the messenger's key, which 'kv-messenger page-key' prints on the engine's host: pass it as"
                        + " a password (curl -u :KEY)\n",
                withBody);
    }

    private void answerMetrics(ChannelHandlerContext context, String accepted, boolean withBody) throws IOException {
        ExpositionFormatWriter format = FORMATS.findWriter(accepted);
        ByteArrayOutputStream page = new ByteArrayOutputStream();
        format.write(page, pages.registry().scrape());
        answer(context, "200 OK", format.getContentType(), page.toByteArray(), withBody);
    }

    /** Needs the key: the state names requests and peers, which is not for every reader of the metrics. */
    private void answerState(ChannelHandlerContext context, String[] lines, String type, boolean withBody) {
        if (!PageKey.opens(pages.pageKey(), header(lines, "authorization"))) {
            refuse(context, withBody);
            return;
        }
        CompletableFuture<MessengerState> asked = new CompletableFuture<>();
        ScheduledFuture<?> late =
                context.executor().schedule(() -> asked.cancel(false), STATE_LIMIT_SECONDS, TimeUnit.SECONDS);
        var unused = asked.whenCompleteAsync(
                (state, fault) -> {
                    late.cancel(false);
                    if (fault != null) {
                        answer(context, "503 Service Unavailable", TEXT, "the messenger does not answer\n", withBody);
                    } else {
                        answer(context, "200 OK", type, body(state, type), withBody);
                    }
                },
                context.executor());
        pages.describe().accept(asked);
    }

    private String body(MessengerState state, String type) {
        return type.equals(StatePage.HTML)
                ? StatePage.html(state, pages.healthProblem().get().orElse(""))
                : StatePage.json(state);
    }

    /** Value of the header, "" if absent. */
    private static String header(String[] lines, String name) {
        for (String line : lines) {
            if (line.toLowerCase(Locale.ROOT).startsWith(name + ":")) {
                return line.substring(name.length() + 1).strip();
            }
        }
        return "";
    }

    private static void answer(
            ChannelHandlerContext context, String status, String type, String body, boolean withBody) {
        answer(context, status, type, body.getBytes(StandardCharsets.UTF_8), withBody);
    }

    private static void answer(
            ChannelHandlerContext context, String status, String type, byte[] body, boolean withBody) {
        String head = "HTTP/1.1 " + status + "\r\nContent-Type: " + type + "\r\nContent-Length: " + body.length
                + "\r\nConnection: close\r\n\r\n";
        ByteBuf bytes = Unpooled.copiedBuffer(head, StandardCharsets.US_ASCII);
        var unused = context.writeAndFlush(
                        withBody ? Unpooled.wrappedBuffer(bytes, Unpooled.wrappedBuffer(body)) : bytes)
                .addListener(ChannelFutureListener.CLOSE);
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        var unused = context.close(); // too long, too slow, or gone: no answer is owed
    }
}
