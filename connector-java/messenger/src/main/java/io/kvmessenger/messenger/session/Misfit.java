package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.MessengerMetric;

/**
 * Why the link to a peer is refused. A value.
 *
 * @param field that differs
 * @param sentence for both sides' logs: what differs, and the remedy
 * @param counted by which such refusals are counted
 */
public record Misfit(String field, String sentence, MessengerMetric counted) {}
