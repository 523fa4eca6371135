package io.kvmessenger.connector.metrics;

import io.kvmessenger.messenger.port.MessengerState;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
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
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Answers one GET or HEAD and closes the connection: HTTP/1.1 as far as scrapers and probes need it.
 *
 * <p>Event loop only.
 */
final class PageHandler extends SimpleChannelInboundHandler<ByteBuf> {
    /** Longest request, headers and all. */
    static final int REQUEST_LENGTH_MAX_BYTES = 8 << 10;

    private static final int REQUEST_LIMIT_SECONDS = 10;
    /** What the messenger's thread may take to say what it holds; less than that of the request, which goes on meanwhile. */
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
        boolean withBody = request[0].equals("GET");
        if (!withBody && !request[0].equals("HEAD")) {
            answer(context, "405 Method Not Allowed", TEXT, "GET or HEAD\n", true);
            return;
        }
        switch (request[1].split("\\?", 2)[0]) {
            case "/health" -> answerHealth(context, withBody);
            case "/metrics" -> answerMetrics(context, accepted(lines), withBody);
            case "/" -> answerState(context, StatePage.HTML, withBody);
            case "/state" -> answerState(context, StatePage.JSON_TYPE, withBody);
            default ->
                answer(context, "404 Not Found", TEXT, "the pages are /metrics, /health, / and /state\n", withBody);
        }
    }

    private void answerHealth(ChannelHandlerContext context, boolean withBody) {
        Optional<String> said = pages.healthProblem().get();
        String status = said.isEmpty() ? "200 OK" : "503 Service Unavailable";
        answer(context, status, TEXT, said.orElse("ok") + "\n", withBody);
    }

    private void answerMetrics(ChannelHandlerContext context, String accepted, boolean withBody) throws IOException {
        ExpositionFormatWriter format = FORMATS.findWriter(accepted);
        ByteArrayOutputStream page = new ByteArrayOutputStream();
        format.write(page, pages.registry().scrape());
        answer(context, "200 OK", format.getContentType(), page.toByteArray(), withBody);
    }

    /** Names of requests and peers are for this host alone, wherever the page of figures can be read from. */
    private void answerState(ChannelHandlerContext context, String type, boolean withBody) {
        if (!isOfThisHost(context.channel())) {
            answer(context, "403 Forbidden", TEXT, "the state is shown to this host only: ask from there\n", withBody);
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

    private static boolean isOfThisHost(Channel channel) {
        return channel.remoteAddress() instanceof InetSocketAddress remote
                && remote.getAddress().isLoopbackAddress();
    }

    private static String accepted(String[] lines) {
        for (String line : lines) {
            if (line.toLowerCase(Locale.ROOT).startsWith("accept:")) {
                return line.substring("accept:".length()).strip();
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
        var unused = context.close(); // too long, too slow, or gone: no page is owed
    }
}
