package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.Json;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.transfer.agent.IdleThreads;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import javax.net.ssl.SSLException;

/**
 * Enqueues a prompt in this prefiller's own engine through its OpenAI-style completions endpoint, with one token to
 * generate: the engine offers a connector no other interface.
 *
 * <p>Called by the messenger's thread, which only hands over: a daemon thread, which ends when idle, makes the request,
 * and results come back through the inbox. It retries once if the engine has closed a kept-alive connection, as vLLM
 * does after five idle seconds: a request may have been sent by then without being read. The second request goes on a
 * new connection, because an engine closes all connections of a burst at the same time.
 */
final class HttpIntake implements EngineIntake, AutoCloseable {
    /** Longest excerpt of an error response: it is sent to the decoder within one sentence. */
    static final int ANSWER_SHOWN_MAX = 300;

    /** The JDK client's message for a connection that ended before the response began. */
    private static final String CLOSED_BEFORE_THE_ANSWER = "received no bytes";

    private static final String VERSION_PATH = "/v1";

    /** @param over completed once nothing is to be sent for it any more, which a prompt never is */
    private record Post(TransferKey transfer, Supplier<byte[]> body, CompletableFuture<Void> over) {}

    private final Optional<URI> completions;
    private final String apiKey;
    private final Duration connectLimit;
    private final Duration limit;
    private final BiConsumer<TransferKey, String> onFailed;
    private final ExecutorService requests = IdleThreads.queueing(1, "kv-messenger-intake-");

    /** For each question that is not over, what completes with it. Used by the messenger's thread only. */
    private final Map<TransferKey, CompletableFuture<Void>> questions = new HashMap<>();

    /** Replaced by the daemon thread only. */
    private volatile Optional<HttpClient> client;

    /**
     * @param apiUrl of the engine, with or without {@code /v1}; empty = none
     * @param apiKey that the engine requires; empty = none
     * @param connectLimit limit on connecting, for all addresses of the URL's host together
     * @param limit limit on one request
     * @throws IllegalArgumentException with a sentence that names the option
     */
    HttpIntake(
            String apiUrl,
            String apiKey,
            Duration connectLimit,
            Duration limit,
            BiConsumer<TransferKey, String> onFailed) {
        this.completions = apiUrl.isEmpty() ? Optional.empty() : Optional.of(completionsAt(apiUrl));
        this.apiKey = apiKey;
        this.connectLimit = connectLimit;
        this.limit = limit;
        this.onFailed = onFailed;
        this.client = completions.map(url -> newClient());
    }

    private HttpClient newClient() {
        return HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1) // vLLM's server drops the body of an offer to upgrade
                .connectTimeout(connectLimit)
                .proxy(HttpClient.Builder.NO_PROXY) // the engine is this host's, whatever the system's proxy is
                .build();
    }

    private static URI completionsAt(String apiUrl) {
        URI url;
        try {
            url = new URI(apiUrl);
        } catch (URISyntaxException e) {
            throw malformed(apiUrl, e);
        }
        boolean web = "http".equals(url.getScheme()) || "https".equals(url.getScheme());
        if (!web || url.getHost() == null || url.getRawQuery() != null || url.getRawFragment() != null) {
            throw malformed(apiUrl, null);
        }
        String path = apiUrl;
        while (path.endsWith("/") || path.endsWith(VERSION_PATH)) {
            path = path.substring(0, path.length() - (path.endsWith("/") ? 1 : VERSION_PATH.length()));
        }
        return URI.create(path + VERSION_PATH + "/completions");
    }

    private static IllegalArgumentException malformed(String apiUrl, URISyntaxException cause) {
        return new IllegalArgumentException(
                "engine_api_url is '" + apiUrl + "', expected a URL like http://127.0.0.1:8000"
                        + (cause == null ? "" : " (" + cause.getReason() + ")")
                        + ": set it to where this engine's own server listens",
                cause);
    }

    @Override
    public boolean takesPrompts() {
        return completions.isPresent();
    }

    @Override
    public boolean takesQuestions() {
        return completions.isPresent();
    }

    @Override
    public void enqueue(TransferKey transfer, EngineCommand.Prompt prompt) {
        post(new Post(transfer, () -> body(prompt, computeIt(transfer)), new CompletableFuture<>()));
    }

    @Override
    public void ask(TransferKey transfer, EngineCommand.Prompt prompt) {
        CompletableFuture<Void> over = new CompletableFuture<>();
        questions.put(transfer, over);
        post(new Post(transfer, () -> body(prompt, lookItUp(transfer)), over));
    }

    /** Closes the request's connection, if there is one yet: the engine aborts what its client has left. */
    @Override
    public void endAsk(TransferKey transfer) {
        CompletableFuture<Void> question = questions.remove(transfer);
        if (question != null) {
            question.complete(null);
        }
    }

    private void post(Post post) {
        requests.execute(() -> attempt(post, false));
    }

    private void postAgain(Post post, HttpClient closedOn) {
        requests.execute(() -> {
            if (client.orElseThrow() == closedOn) {
                client = Optional.of(newClient());
                closedOn.shutdown(); // what it has sent already is finished
            }
            attempt(post, true);
        });
    }

    private void attempt(Post post, boolean again) {
        if (post.over.isDone()) {
            return; // it had to wait for requests before it, or for the end of a closed connection
        }
        try {
            send(post, again);
        } catch (IOException e) {
            failed(post.transfer, e.getMessage());
        } catch (RuntimeException e) { // results in a decline, instead of a decoder that waits for its limit
            failed(post.transfer, e.toString());
        }
    }

    /** The URL, at the first address of its host that takes a connection. TLS needs the name, so it stays there. */
    private URI reachable() throws IOException {
        URI url = completions.orElseThrow();
        return "http".equals(url.getScheme()) ? ReachableUrl.of(url, connectLimit) : url;
    }

    private void send(Post post, boolean again) throws IOException {
        HttpRequest.Builder request = HttpRequest.newBuilder(reachable())
                .timeout(limit)
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofByteArray(post.body.get()));
        if (!apiKey.isEmpty()) {
            request.header("Authorization", "Bearer " + apiKey);
        }
        HttpClient used = client.orElseThrow();
        CompletableFuture<HttpResponse<String>> sent = used.sendAsync(request.build(), BodyHandlers.ofString());
        var unused = sent.whenComplete((answer, fault) -> {
            if (post.over.isDone()) {
                return;
            }
            if (!again && String.valueOf(fault).contains(CLOSED_BEFORE_THE_ANSWER)) {
                postAgain(post, used);
            } else {
                onAnswer(post.transfer, answer, fault);
            }
        });
        leaveAtTheEndOf(post, sent);
    }

    private void leaveAtTheEndOf(Post post, CompletableFuture<?> sent) {
        var unused = post.over.thenRunAsync(() -> sent.cancel(true), requests);
    }

    private void onAnswer(TransferKey transfer, HttpResponse<String> answer, Throwable fault) {
        if (fault != null) {
            failed(transfer, given(fault));
        } else if (answer.statusCode() == 401 || answer.statusCode() == 403) {
            failed(transfer, "status " + answer.statusCode() + ": set engine_api_key to the engine's --api-key");
        } else if (answer.statusCode() != 200) {
            failed(transfer, "status " + answer.statusCode() + ": " + answer.body());
        }
    }

    /** Adds a remedy where TLS failed: an engine's CA is often private, and the JVM trusts public ones only. */
    private static String given(Throwable fault) {
        boolean tls = fault instanceof SSLException || fault.getCause() instanceof SSLException;
        return (tls
                        ? "no TLS with the engine: name a trust store that has its authority in jvm_options,"
                                + " -Djavax.net.ssl.trustStore=FILE: "
                        : "")
                + fault.getMessage();
    }

    private void failed(TransferKey transfer, String why) {
        String sentence = "the prefiller could not enqueue the prompt in its own engine at engine_api_url "
                + completions.orElseThrow() + " (" + shown(why) + ")";
        onFailed.accept(transfer, sentence);
    }

    /** A short excerpt in one line. */
    private static String shown(String why) {
        String cut = why.length() <= ANSWER_SHOWN_MAX ? why : why.substring(0, ANSWER_SHOWN_MAX) + " …";
        return cut.replaceAll("\\p{Cntrl}+", " ").strip();
    }

    @Override
    public void close() {
        requests.shutdownNow();
        client.ifPresent(HttpClient::shutdownNow);
    }

    private static Map<String, Object> computeIt(TransferKey transfer) {
        return Map.of("do_remote_decode", true, "do_remote_prefill", false, "transfer_id", transfer.id());
    }

    /**
     * The engine looks its prefix cache up when it queues the request. It computes one token of the prompt if the
     * connection stays open for long.
     */
    private static Map<String, Object> lookItUp(TransferKey transfer) {
        return Map.of("asked_by_transfer", transfer.id(), "asked_digest", transfer.digest());
    }

    private static byte[] body(EngineCommand.Prompt prompt, Map<String, Object> transferParams) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("prompt", Arrays.stream(prompt.tokenIds()).boxed().toList());
        body.put("max_tokens", 1);
        if (!prompt.cacheSalt().isEmpty()) {
            body.put("cache_salt", prompt.cacheSalt());
        }
        if (prompt.priority() != 0) {
            body.put("priority", prompt.priority());
        }
        body.put("kv_transfer_params", transferParams);
        return Json.bytes(body);
    }
}
