package io.kvmessenger.connector.metrics;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.kvmessenger.connector.boot.RefusedException;
import io.prometheus.metrics.exporter.httpserver.MetricsHandler;
import io.prometheus.metrics.model.registry.PrometheusRegistry;
import java.io.IOException;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The pages {@code /metrics} and {@code /health}.
 *
 * <p>Pages are made on daemon threads of its own, which end when nobody asks; a page that too many ask for at once is
 * dropped. It knows no figure.
 */
final class MetricsServer implements AutoCloseable {
    private static final int PAGES_AT_ONCE_MAX = 2;
    private static final int PAGES_WAITING_MAX = 16;
    private static final int CONNECTIONS_WAITING_MAX = 16;
    private static final long IDLE_THREAD_SECONDS = 5;

    private final HttpServer http;
    private final ThreadPoolExecutor pages;

    private MetricsServer(HttpServer http, ThreadPoolExecutor pages) {
        this.http = http;
        this.pages = pages;
    }

    static MetricsServer open(String host, int port, PrometheusRegistry registry, Supplier<Optional<String>> illness) {
        HttpServer http = listen(host, port);
        ThreadPoolExecutor pages = new ThreadPoolExecutor(
                PAGES_AT_ONCE_MAX,
                PAGES_AT_ONCE_MAX,
                IDLE_THREAD_SECONDS,
                TimeUnit.SECONDS,
                new ArrayBlockingQueue<>(PAGES_WAITING_MAX),
                Thread.ofPlatform().daemon().name("kv-messenger-metrics-", 0).factory());
        pages.allowCoreThreadTimeOut(true);
        http.setExecutor(pages);
        http.createContext("/metrics", new MetricsHandler(registry));
        http.createContext("/health", exchange -> answerHealth(exchange, illness.get()));
        startAsDaemon(http);
        return new MetricsServer(http, pages);
    }

    int port() {
        return http.getAddress().getPort();
    }

    @Override
    public void close() {
        http.stop(0);
        pages.shutdownNow();
    }

    private static HttpServer listen(String host, int port) {
        InetSocketAddress address = new InetSocketAddress(host, port);
        if (address.isUnresolved()) {
            throw new RefusedException("metrics_host is '" + host + "', expected an address of this machine: no such"
                    + " host is known, set metrics_host to 127.0.0.1 or another address");
        }
        try {
            return HttpServer.create(address, CONNECTIONS_WAITING_MAX);
        } catch (BindException e) {
            throw new RefusedException(
                    "metrics_port is " + port + " on " + host + ", expected a free port of this machine ("
                            + e.getMessage() + "): choose another metrics_port, or 0 to take any free one",
                    e);
        } catch (IOException e) {
            throw new RefusedException(
                    "metrics_port " + port + " on " + host + " cannot be opened (" + e.getMessage()
                            + "): set metrics_port to -1 to do without the pages",
                    e);
        }
    }

    /** The dispatcher inherits being a daemon from the thread that starts it. */
    private static void startAsDaemon(HttpServer http) {
        Thread starter =
                Thread.ofPlatform().daemon().name("kv-messenger-metrics-start").start(http::start);
        try {
            starter.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void answerHealth(HttpExchange exchange, Optional<String> illness) throws IOException {
        byte[] body = (illness.orElse("ok") + "\n").getBytes(StandardCharsets.UTF_8);
        try (exchange) {
            exchange.getRequestBody().readAllBytes();
            exchange.getResponseHeaders().set("Content-Type", "text/plain; charset=utf-8");
            exchange.sendResponseHeaders(illness.isEmpty() ? 200 : 503, body.length);
            exchange.getResponseBody().write(body);
        }
    }
}
