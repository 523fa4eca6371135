package io.kvmessenger.connector;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.Fields;
import java.io.IOException;

/** Parses what Python passes to a function of docs/boundary.md. Pure. */
final class RequestJson {
    private RequestJson() {}

    /**
     * @param function its name, with which sentences about the request begin
     * @throws IllegalArgumentException if the request is no JSON object
     */
    static Fields parse(String function, byte[] json) {
        try {
            return Fields.of(function, JSON.std.anyFrom(json));
        } catch (IOException e) {
            throw new IllegalArgumentException(function + " is not JSON: " + e.getMessage(), e);
        }
    }
}
