package io.kvmessenger.connector.metrics;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;

/**
 * Whether a request shows the key of the pages that are not for every reader of the metrics. Pure functions.
 *
 * <p>Where a request comes from proves nothing: behind a proxy of the pod all come from this host.
 */
final class PageKey {
    private static final String BEARER = "Bearer ";
    private static final String BASIC = "Basic ";

    private PageKey() {}

    /**
     * Whether the header has the key, as a bearer token or as the password of any user.
     *
     * @param key empty = nothing opens the pages
     * @param authorization the header's value; empty = the request has none
     */
    static boolean opens(String key, String authorization) {
        return !key.isEmpty()
                && MessageDigest.isEqual(
                        key.getBytes(StandardCharsets.UTF_8),
                        shown(authorization).getBytes(StandardCharsets.UTF_8));
    }

    private static String shown(String authorization) {
        if (authorization.regionMatches(true, 0, BEARER, 0, BEARER.length())) {
            return authorization.substring(BEARER.length()).strip();
        }
        if (!authorization.regionMatches(true, 0, BASIC, 0, BASIC.length())) {
            return "";
        }
        try {
            byte[] decoded = Base64.getDecoder()
                    .decode(authorization.substring(BASIC.length()).strip());
            String pair = new String(decoded, StandardCharsets.UTF_8);
            return pair.substring(pair.indexOf(':') + 1);
        } catch (IllegalArgumentException e) {
            return ""; // no base64
        }
    }
}
