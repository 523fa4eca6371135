package io.kvmessenger.connector;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.EngineCommand;
import io.kvmessenger.messenger.EngineIntake;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Enqueues a prompt in this prefiller's own engine by its OpenAI-style completions endpoint, one token long: the engine
 * offers a connector no other way in.
 *
 * <p>Called by the messenger's thread; answers come back through the inbox. It does not retry.
 */
final class HttpIntake implements EngineIntake {
    private final String apiUrl;
    private final Duration limit;
    private final Inbox inbox;
    private HttpClient client;

    HttpIntake(String apiUrl, Duration limit, Inbox inbox) {
        this.apiUrl = apiUrl.endsWith("/") ? apiUrl.substring(0, apiUrl.length() - 1) : apiUrl;
        this.limit = limit;
        this.inbox = inbox;
    }

    @Override
    public boolean available() {
        return !apiUrl.isEmpty();
    }

    @Override
    public void enqueue(String transferId, EngineCommand.Prompt prompt) {
        if (client == null) {
            client = HttpClient.newBuilder()
                    .version(HttpClient.Version.HTTP_1_1) // vLLM's server drops the body of an offer to upgrade
                    .connectTimeout(limit)
                    .build();
        }
        HttpRequest request = HttpRequest.newBuilder(URI.create(apiUrl + "/v1/completions"))
                .timeout(limit)
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofByteArray(body(transferId, prompt)))
                .build();
        var unused = client.sendAsync(request, BodyHandlers.ofString())
                .whenComplete((answer, fault) -> onAnswer(transferId, answer, fault));
    }

    private void onAnswer(String transferId, HttpResponse<String> answer, Throwable fault) {
        if (fault != null) {
            failed(transferId, String.valueOf(fault.getMessage()));
        } else if (answer.statusCode() != 200) {
            failed(transferId, "status " + answer.statusCode() + ": " + answer.body());
        }
    }

    private void failed(String transferId, String why) {
        String sentence = "the prefiller could not enqueue the prompt in its own engine at engine_api_url " + apiUrl
                + " (" + why + ")";
        inbox.add(messenger -> messenger.onEnqueueFailed(transferId, sentence));
    }

    private static byte[] body(String transferId, EngineCommand.Prompt prompt) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("prompt", Arrays.stream(prompt.tokenIds()).boxed().toList());
        body.put("max_tokens", 1);
        if (!prompt.cacheSalt().isEmpty()) {
            body.put("cache_salt", prompt.cacheSalt());
        }
        if (prompt.priority() != 0) {
            body.put("priority", prompt.priority());
        }
        body.put(
                "kv_transfer_params",
                Map.of("do_remote_decode", true, "do_remote_prefill", false, "transfer_id", transferId));
        try {
            return JSON.std.asBytes(body);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
