package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/** Every request ends once on each side, and the pair of ends is in {@link AllowedEnds}. */
final class TerminalChecker implements WorldListener {
    /** Observations of a prefill's present attempt. */
    private static final class Attempt {
        final String transferId;
        boolean sent;

        Attempt(String transferId) {
            this.transferId = transferId;
        }
    }

    /** Frames about a transfer between a prefiller process and one of a decoder's messengers. */
    private static final class Given {
        boolean granted;
        boolean undelivered;
        boolean cancelConfirmed;

        /** How a prefill has ended for that messenger if not everything has left. */
        PrefillEnd end() {
            if (cancelConfirmed) {
                return PrefillEnd.CANCELLED;
            }
            if (undelivered) {
                return PrefillEnd.UNDELIVERED;
            }
            return granted ? PrefillEnd.LOST : PrefillEnd.EXPIRED;
        }
    }

    private static final class Fetch {
        final String transferId;
        boolean abandoned;
        boolean quarantined;
        FetchEnd end;

        Fetch(String transferId) {
            this.transferId = transferId;
        }
    }

    private final Map<String, Attempt> attempts = new LinkedHashMap<>();
    private final Map<String, Given> given = new HashMap<>();
    /** The granted transfer, by prefiller, decoder and id of the grant. */
    private final Map<String, String> granted = new HashMap<>();

    private final Map<String, Fetch> fetches = new LinkedHashMap<>();
    private final Map<String, Set<PrefillEnd>> prefillEnds = new HashMap<>();

    // ---- prefillers

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        if (frame.hasGrant()) {
            Grant grant = frame.getGrant();
            String name = PromptName.of(grant.getTransferId(), grant.getPromptDigest());
            given(to, name, from).granted = true;
            granted.put(to + " " + from + " " + grant.getGrantId(), name);
        }
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        if (frame.hasCancelConfirmed()) {
            CancelConfirmed confirmed = frame.getCancelConfirmed();
            String name = granted.get(from + " " + to + " " + confirmed.getGrantId());
            given(from, name, to).cancelConfirmed = true;
        } else if (frame.hasCannotDeliver()) {
            CannotDeliver answer = frame.getCannotDeliver();
            Reason reason = answer.getReason();
            boolean mayHaveBegun = reason == Reason.PREFILL_ABORTED || reason == Reason.PATH_LOST;
            given(from, PromptName.of(answer.getTransferId(), answer.getPromptDigest()), to).undelivered |=
                    mayHaveBegun;
        }
    }

    @Override
    public void prefillSent(String process, String request, String transferId) {
        attempts.computeIfAbsent(process + " " + request, r -> new Attempt(transferId)).sent = true;
    }

    @Override
    public void prefillPagesTakenBack(String process, String request, String transferId) {
        Attempt attempt = attempts.remove(process + " " + request);
        endAttempt(transferId, attempt != null && attempt.sent ? PrefillEnd.SENT : PrefillEnd.PREEMPTED);
    }

    @Override
    public void prefillEnded(String process, String request, String transferId, PrefillOutcome outcome) {
        attempts.computeIfAbsent(process + " " + request, r -> new Attempt(transferId));
    }

    @Override
    public void prefillReleased(String process, String request) {
        Attempt attempt = attempts.remove(process + " " + request);
        String ofTransfer = process + " " + attempt.transferId + " ";
        boolean heardOf = false;
        for (Map.Entry<String, Given> entry : given.entrySet()) {
            if (entry.getKey().startsWith(ofTransfer)) {
                heardOf = true;
                endAttempt(
                        attempt.transferId,
                        attempt.sent ? PrefillEnd.SENT : entry.getValue().end());
            }
        }
        if (!heardOf) {
            endAttempt(attempt.transferId, attempt.sent ? PrefillEnd.SENT : PrefillEnd.EXPIRED);
        }
    }

    private Given given(String process, String transferId, String decoder) {
        return given.computeIfAbsent(process + " " + transferId + " " + decoder, key -> new Given());
    }

    private void endAttempt(String transferId, PrefillEnd end) {
        prefillEnds
                .computeIfAbsent(transferId, t -> EnumSet.noneOf(PrefillEnd.class))
                .add(end);
    }

    // ---- decoders

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetches.put(fetch.process() + " " + fetch.request(), new Fetch(fetch.transferId()));
    }

    @Override
    public void fetchAbandoned(String process, String request) {
        fetches.get(process + " " + request).abandoned = true;
    }

    @Override
    public void fetchQuarantined(String process, String request, String reason) {
        Fetch fetch = fetches.get(process + " " + request);
        if (fetch.quarantined || fetch.end != null) {
            throw new Violation("Terminal", request + " is quarantined, and was already, or had ended as " + fetch.end);
        }
        fetch.quarantined = true;
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        if (fetches.get(process + " " + request).quarantined) {
            throw new Violation("Terminal", request + " arrived, and its engine was told that it would not");
        }
        end(process, request, FetchEnd.ARRIVED);
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        boolean abandoned = fetches.get(process + " " + request).abandoned;
        end(process, request, abandoned ? FetchEnd.CANCELLED : FetchEnd.FAILED);
    }

    private void end(String process, String request, FetchEnd end) {
        Fetch fetch = fetches.get(process + " " + request);
        if (fetch.end != null) {
            throw new Violation("Terminal", request + " ended as " + fetch.end + " and then as " + end);
        }
        fetch.end = end;
    }

    // ---- both

    @Override
    public void processDied(String process) {
        attempts.entrySet().removeIf(entry -> {
            boolean ofProcess = entry.getKey().startsWith(process + " ");
            if (ofProcess) {
                endAttempt(entry.getValue().transferId, PrefillEnd.DIED);
            }
            return ofProcess;
        });
        given.forEach((key, facts) -> {
            if (key.startsWith(process + " ")) {
                String ofProcess = key.substring(process.length() + 1);
                endAttempt(ofProcess.substring(0, ofProcess.indexOf(' ')), PrefillEnd.DIED);
            }
        });
        fetches.forEach((key, fetch) -> {
            if (key.startsWith(process + " ") && fetch.end == null) {
                fetch.end = FetchEnd.DIED;
            }
        });
    }

    @Override
    public void worldAtRest() {
        Map<String, FetchEnd> fetchEnds = new HashMap<>();
        fetches.forEach((key, fetch) -> {
            if (fetch.end == null) {
                throw new Violation("Terminal", key + " has not ended");
            }
            fetchEnds.put(fetch.transferId, fetch.end);
            judge(fetch.transferId, fetch.end);
        });
        for (String transferId : prefillEnds.keySet()) {
            if (!fetchEnds.containsKey(transferId)) {
                judge(transferId, FetchEnd.ABSENT);
            }
        }
    }

    private void judge(String transferId, FetchEnd fetchEnd) {
        Set<PrefillEnd> ends = prefillEnds.getOrDefault(transferId, EnumSet.of(PrefillEnd.ABSENT));
        if (ends.stream().noneMatch(end -> AllowedEnds.with(end).contains(fetchEnd))) {
            throw new Violation(
                    "Terminal",
                    "transfer " + transferId + " ended as " + ends + " at the prefiller and " + fetchEnd
                            + " at the decoder");
        }
    }
}
