package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.UpdateEnd;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.weights.wire.Abandon;
import io.kvmessenger.weights.wire.Announce;
import io.kvmessenger.weights.wire.Applied;
import io.kvmessenger.weights.wire.Ground;
import io.kvmessenger.weights.wire.Landed;
import io.kvmessenger.weights.wire.WeightsFrame;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The host's side of weights: it dials senders, gives its one landing to one update after the other, and lets the engine
 * load only what has landed whole, is what was announced, and is newer than what the engine serves.
 *
 * <p>Owned by the messenger's thread.
 */
public final class WeightReceiver extends WeightsSubject {
    private static final long RETRY_NS = 1_000_000;
    private static final long REST_NS = 1_000_000_000;

    private static final String PATHS_ENDED = "the data paths to this server have ended: let it dial again";

    private final SubjectPorts ports;
    private final ReceiverEvents events;
    private final Landing landing;
    /** Sessions with an admission that is not closed, also those that have ended. */
    private final Map<Integer, HostSession> byAdmission = new HashMap<>();
    /** Updates that wait for the proof that the landing is free, in order. */
    private final Map<HostSession, Waiting> waiting = new LinkedHashMap<>();
    /** What the engine serves; 0 = what it started with. */
    private long servedVersion;

    private long applyingSinceNs;

    private record Waiting(Update update, long deadlineNs) {}

    public WeightReceiver(
            ByteString manifestDigest, Region region, LandingParts parts, SubjectPorts ports, ReceiverEvents events) {
        super(manifestDigest);
        this.ports = ports;
        this.events = events;
        this.landing = new Landing(region, parts, ports.transfer());
    }

    // ---- what the engine asks for

    /**
     * Dials a sender.
     *
     * @param refusal why it can write nothing here, in one sentence, which it is told; "" if it can
     */
    public void dial(String host, int port, String ticket, String refusal) {
        ports.sessions()
                .dial(
                        host,
                        port,
                        (link, peerAddress) -> new HostSession(this, link, peerAddress, ticket, refusal),
                        ports.clock().nowNs());
    }

    /** The engine would load this update now: it is told whether it may. */
    public void apply(long updateId) {
        Update update = landing.update();
        switch (landing.state()) {
            case LANDED -> {
                if (update.id() == updateId) {
                    landing.onApplying();
                    applyingSinceNs = ports.clock().nowNs();
                    events.decided(updateId, "");
                } else {
                    events.decided(updateId, "update " + update.id() + " is in the landing");
                }
            }
            case EMPTY, GROUND, COMPARING, QUARANTINED -> events.decided(updateId, "it has not landed");
            case APPLYING, HELD -> events.decided(updateId, "version " + update.version() + " has been loaded");
        }
    }

    /** Every rank has loaded the update, or, with a reason, none has begun to. */
    public void applied(long updateId, String failure) {
        Update update = landing.update();
        if (landing.state() != LandingState.APPLYING || update.id() != updateId) {
            return;
        }
        if (!failure.isEmpty()) {
            landing.onNotApplied();
            refuse(update.sender(), updateId, failure);
            return;
        }
        landing.onApplied();
        servedVersion = update.version();
        ports.tally().add(MessengerMetric.WEIGHT_UPDATES_ENDED, UpdateEnd.APPLIED);
        ports.tally().set(MessengerMetric.WEIGHTS_VERSION, servedVersion);
        ports.tally()
                .observe(MessengerMetric.WEIGHTS_APPLY_SECONDS, (ports.clock().nowNs() - applyingSinceNs) / 1e9);
        send(
                update.sender(),
                WeightsFrame.newBuilder().setApplied(Applied.newBuilder().setUpdateId(updateId)));
    }

    // ---- sessions

    void admit(HostSession session, Attach.Builder attach) {
        session.admission = ports.transfer().admit(session.peerName());
        byAdmission.put(session.admission.id(), session);
        ByteString key = session.concealed(ByteString.copyFrom(session.admission.key()));
        AttachWire.encode(attach, ports.transfer().address(), key, List.of());
        attach.setSubject(WeightsFrames.target(
                session.ticket, session.refusal, landing.region().descriptor()));
    }

    void onFrame(HostSession session, ControlFrame frame) {
        if (!frame.hasSubject()) {
            end(session, session.peerName() + " sent " + frame.getBodyCase() + ", expected a frame of weights");
            return;
        }
        WeightsFrame weights = WeightsFrames.decode(frame);
        switch (weights.getBodyCase()) {
            case ANNOUNCE -> onAnnounce(session, weights.getAnnounce());
            case ABANDON -> onAbandon(session, weights.getAbandon());
            case GROUND, LANDED, APPLIED, REFUSED, BODY_NOT_SET ->
                end(session, session.peerName() + " sent " + weights.getBodyCase() + ", which only a host sends");
        }
    }

    private void onAnnounce(HostSession session, Announce announce) {
        Update update = new Update(announce.getUpdateId(), announce.getVersion(), announce.getContentDigest(), session);
        String unfit = unfit(session, announce);
        if (!unfit.isEmpty()) {
            refuse(session, update.id(), unfit);
            return;
        }
        if (landing.state() == LandingState.QUARANTINED || !waiting.isEmpty()) {
            waiting.put(
                    session,
                    new Waiting(update, ports.clock().nowNs() + ports.limits().connectLimitNs()));
        } else {
            groundUnlessTaken(update);
        }
    }

    private void groundUnlessTaken(Update update) {
        if (!taken(update.sender())) {
            ground(update);
            return;
        }
        refuse(
                update.sender(),
                update.id(),
                "version " + landing.update().version() + " of "
                        + landing.update().sender().peerName() + " is on its way into this server: send again when it"
                        + " has ended");
    }

    /** Whether the landing has an update that is to be loaded yet. One that has landed is given up with its sender. */
    private boolean taken(HostSession by) {
        return switch (landing.state()) {
            case EMPTY, HELD -> false;
            case GROUND, COMPARING, APPLYING, QUARANTINED -> true;
            case LANDED -> {
                HostSession sender = landing.update().sender();
                yield sender != by && sender.state() != Session.State.ENDED;
            }
        };
    }

    /** Why an update cannot be taken, whatever the landing's state; "" if it can. */
    private String unfit(HostSession session, Announce announce) {
        if (!byAdmission.containsKey(session.admission.id())) {
            return PATHS_ENDED;
        }
        if (announce.getVersion() <= servedVersion) {
            return "version is " + announce.getVersion() + ", expected one above " + servedVersion
                    + ", which this server serves: send a newer one";
        }
        return announce.getWriteCount() == landing.writeCount()
                ? ""
                : announce.getWriteCount() + " writes were announced, expected the " + landing.writeCount()
                        + " of this landing: use the same release on both sides";
    }

    private void ground(Update update) {
        boolean unloaded = landing.state() == LandingState.LANDED; // its sender sends another, or is gone
        Integer imm = landing.ground(update);
        if (imm == null) {
            refuse(update.sender(), update.id(), "this server has no window left: send again");
            return;
        }
        if (unloaded) {
            ports.tally().add(MessengerMetric.WEIGHT_UPDATES_ENDED, UpdateEnd.ABANDONED);
        }
        send(
                update.sender(),
                WeightsFrame.newBuilder()
                        .setGround(Ground.newBuilder().setUpdateId(update.id()).setImm(imm)));
    }

    private void onAbandon(HostSession session, Abandon abandon) {
        waiting.remove(session);
        Update update = landing.update();
        if (landing.state() == LandingState.GROUND
                && update.sender() == session
                && update.id() == abandon.getUpdateId()) {
            landing.quarantine(abandon.getPostedCount());
            ports.tally().add(MessengerMetric.WEIGHT_UPDATES_ENDED, UpdateEnd.ABANDONED);
            releaseProven();
        }
    }

    /** What was posted may still land: only the end of the admission is the proof. */
    void onEnded(HostSession session, String reason) {
        waiting.remove(session);
        if (owns(session)) {
            landing.quarantine();
            ports.tally().add(MessengerMetric.WEIGHT_UPDATES_ENDED, UpdateEnd.SENDER_LOST);
        }
        if (session.admission != null && byAdmission.containsKey(session.admission.id())) {
            ports.transfer().revoke(session.admission);
        }
        events.ended(session.ticket, reason);
    }

    /** Whether the landing is grounded for an update of this sender. */
    private boolean owns(HostSession session) {
        return landing.state() == LandingState.GROUND && landing.update().sender() == session;
    }

    @Override
    public Session accept(long link, String peerAddress) {
        throw new AssertionError("a host of weights does not listen, and " + peerAddress + " opened a link");
    }

    private void send(HostSession session, WeightsFrame.Builder frame) {
        if (session.ready()) {
            ports.sessions().send(session, WeightsFrames.encode(frame));
        }
    }

    private void refuse(HostSession session, long updateId, String sentence) {
        ports.tally().add(MessengerMetric.WEIGHT_UPDATES_ENDED, UpdateEnd.REFUSED);
        if (session.ready()) {
            ports.sessions().send(session, WeightsFrames.refused(updateId, sentence));
        }
    }

    private void end(HostSession session, String reason) {
        ports.sessions().end(session, reason);
    }

    // ---- completions

    void onWindowFilled(long cookie) {
        if (landing.awaits(cookie)) {
            landing.onFilled();
            ports.tally()
                    .add(
                            MessengerMetric.WEIGHTS_LANDED_BYTES,
                            landing.region().descriptor().lengthBytes());
        }
    }

    void onWindowOvershot(long cookie) {
        if (landing.awaits(cookie)) {
            HostSession session = landing.update().sender();
            end(session, session.peerName() + " wrote more than it had announced");
        }
    }

    /** Nothing of this sender lands any more. */
    void onAdmissionClosed(Admission admission, String detail) {
        HostSession session = byAdmission.remove(admission.id());
        if (session == null) {
            return;
        }
        Waiting unheeded = waiting.remove(session);
        if (unheeded != null) {
            refuse(session, unheeded.update().id(), PATHS_ENDED);
        }
        if (owns(session) && landing.hasAll()) {
            onWindowFilled(landing.windowCookie());
        } else if (owns(session)) {
            landing.quarantine();
            ports.tally().add(MessengerMetric.WEIGHT_UPDATES_ENDED, UpdateEnd.SENDER_LOST);
        }
        if (landing.state() == LandingState.QUARANTINED && landing.update().sender() == session) {
            landing.release();
        }
        if (session.state() != Session.State.ENDED) {
            ports.sessions().endUnlessExplained(session, detail, ports.clock().nowNs());
        }
    }

    // ---- the duty cycle

    private int compare(long nowNs) {
        int work = landing.compare();
        if (landing.compared()) {
            Update update = landing.update();
            if (landing.judge()) {
                send(
                        update.sender(),
                        WeightsFrame.newBuilder().setLanded(Landed.newBuilder().setUpdateId(update.id())));
                events.landed(update.id(), update.version(), update.contentDigest());
            } else {
                refuse(
                        update.sender(),
                        update.id(),
                        "what has landed has another digest than what was announced: look at the network and the"
                                + " memory of both hosts, and send again");
            }
            work++;
        }
        return work;
    }

    private int releaseProven() {
        if (!landing.provenByCount()) {
            return 0;
        }
        landing.release();
        return 1;
    }

    /** The landing is free: the update that has waited longest gets it, and the others find it taken. */
    private int takeWaiting() {
        int answered = 0;
        while (!waiting.isEmpty() && landing.state() != LandingState.QUARANTINED) {
            HostSession first = waiting.keySet().iterator().next();
            Update update = waiting.remove(first).update();
            try {
                groundUnlessTaken(update);
            } catch (RuntimeException | Error bug) {
                end(first, "a bug in the messenger was met by an update of " + first.peerName() + ": " + bug);
                throw bug; // the others are answered in the next cycle
            }
            answered++;
        }
        return answered;
    }

    private int refuseLate(long nowNs) {
        if (landing.state() != LandingState.QUARANTINED) {
            return 0; // they are about to be answered
        }
        int late = 0;
        for (Map.Entry<HostSession, Waiting> each : new ArrayList<>(waiting.entrySet())) {
            if (nowNs - each.getValue().deadlineNs() >= 0) {
                waiting.remove(each.getKey());
                refuse(
                        each.getKey(),
                        each.getValue().update().id(),
                        "the landing may still be written to by "
                                + landing.update().sender().peerName()
                                + ", which has lost its session and not ended: end that process, and send again");
                late++;
            }
        }
        return late;
    }

    @Override
    public List<Duty> duties() {
        return List.of(this::compare, nowNs -> releaseProven(), nowNs -> takeWaiting(), this::refuseLate);
    }

    @Override
    public CompletionHandler completions() {
        return new ReceiverCompletions(this);
    }

    @Override
    public long nextDeadlineNs(long nowNs) {
        boolean busy = landing.state() == LandingState.QUARANTINED || !waiting.isEmpty();
        return nowNs + (busy ? RETRY_NS : REST_NS);
    }

    @Override
    public void shutDown(String reason) {
        for (HostSession session : List.copyOf(waiting.keySet())) {
            refuse(session, waiting.remove(session).update().id(), reason);
        }
    }

    /** What lands is never read again, and the engine keeps the landing until the messenger is closed. */
    @Override
    public boolean finished() {
        return true;
    }

    @Override
    public void onTransferEnded(String reason) {
        if (landing.state() == LandingState.QUARANTINED) {
            landing.release();
        }
    }

    @Override
    public void publishGauges() {
        ports.tally().set(MessengerMetric.WINDOWS_OPEN, landing.windowsOpen());
    }

    @Override
    public Map<String, Integer> held() {
        return Map.of("updatesLanding", landing.windowsOpen(), "updatesWaiting", waiting.size());
    }

    public LandingState state() {
        return landing.state();
    }
}
