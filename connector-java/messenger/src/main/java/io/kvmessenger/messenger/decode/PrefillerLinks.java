package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Expect;
import io.kvmessenger.messenger.wire.PromptWire;
import io.kvmessenger.messenger.wire.Rejected;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

/**
 * A decoder's sessions with prefillers, by address, dialled on first use, and the frames about transfers without a
 * grant. Frames sent before a session is ready are queued on it; those not delivered when it ends are lost.
 *
 * <p>Owned by the messenger's thread. Of transfers it keeps only which ones are expected.
 */
final class PrefillerLinks {
    private final Sessions sessions;
    private final Sessions.Opening<PrefillerSession> opening;
    private final Map<String, PrefillerSession> byAddress = new HashMap<>();
    private final Map<PrefillerSession, EngineCommand.PrefillerAddress> dialled = new HashMap<>();
    /** Transfers for which the engine awaits the event that their prompts are computed. */
    private final Map<PrefillerSession, Set<TransferKey>> expected = new HashMap<>();

    PrefillerLinks(Sessions sessions, Sessions.Opening<PrefillerSession> opening) {
        this.sessions = sessions;
        this.opening = opening;
    }

    PrefillerSession at(EngineCommand.PrefillerAddress address, long nowNs) {
        PrefillerSession session = byAddress.computeIfAbsent(
                address.host() + ":" + address.port(),
                unknown -> sessions.dial(address.host(), address.port(), opening, nowNs));
        dialled.putIfAbsent(session, address);
        return session;
    }

    /** The session with the messenger at this address; null if there is none. Does not dial. */
    PrefillerSession known(EngineCommand.PrefillerAddress address) {
        return byAddress.get(address.host() + ":" + address.port());
    }

    EngineCommand.PrefillerAddress addressOf(PrefillerSession session) {
        return dialled.get(session);
    }

    void each(List<EngineCommand.PrefillerAddress> addresses, long nowNs, Consumer<PrefillerSession> reported) {
        addresses.forEach(address -> reported.accept(at(address, nowNs)));
    }

    /** Tells the prefiller that no grant will come for this transfer. */
    void decline(PrefillerSession session, TransferKey transfer) {
        decline(session, transfer, EngineCommand.Prompt.NONE);
    }

    /** Declines a transfer for this decoder's ranks; a prompt, if given, is still computed, for other ranks. */
    void decline(PrefillerSession session, TransferKey transfer, EngineCommand.Prompt prompt) {
        takeExpected(session, transfer);
        Decline.Builder decline =
                Decline.newBuilder().setTransferId(transfer.id()).setPromptDigest(transfer.digest());
        if (!prompt.absent()) {
            decline.setPrompt(PromptWire.encode(prompt));
        }
        send(session, ControlFrame.newBuilder().setDecline(decline));
    }

    /** Tells the prefiller that a grant for this transfer will come, however long the engine's queue is. */
    void expect(PrefillerSession session, TransferKey transfer) {
        expected.computeIfAbsent(session, unknown -> new HashSet<>()).add(transfer);
        send(
                session,
                ControlFrame.newBuilder()
                        .setExpect(
                                Expect.newBuilder().setTransferId(transfer.id()).setPromptDigest(transfer.digest())));
    }

    /** Tells the prefiller that the request for this transfer is not here; the digest of its prompt is unknown. */
    void reject(PrefillerSession session, String transferId) {
        send(
                session,
                ControlFrame.newBuilder().setRejected(Rejected.newBuilder().setTransferId(transferId)));
    }

    void onReady(PrefillerSession session) {
        session.waitingFrames.forEach(frame -> sessions.send(session, frame));
        session.waitingFrames.clear();
    }

    int expectedCount() {
        return expected.values().stream().mapToInt(Set::size).sum();
    }

    boolean expectsOf(PrefillerSession session) {
        return expected.containsKey(session);
    }

    boolean takeExpected(PrefillerSession session, TransferKey transfer) {
        Set<TransferKey> transfers = expected.get(session);
        if (transfers == null || !transfers.remove(transfer)) {
            return false;
        }
        if (transfers.isEmpty()) {
            expected.remove(session);
        }
        return true;
    }

    /** The session is about to end: the next ask of its address dials again. */
    void retire(PrefillerSession session) {
        byAddress.values().remove(session);
    }

    /** Whether a session with the messenger at this address is open. */
    boolean isReadyAt(EngineCommand.PrefillerAddress address) {
        PrefillerSession session = known(address);
        return session != null && session.ready();
    }

    /** Forgets the session. Returns the expected transfers for which no event will come. */
    Set<TransferKey> onEnded(PrefillerSession session) {
        byAddress.values().remove(session);
        dialled.remove(session);
        Set<TransferKey> transfers = expected.remove(session);
        return transfers == null ? Set.of() : transfers;
    }

    private void send(PrefillerSession session, ControlFrame.Builder frame) {
        if (session.ready()) {
            sessions.send(session, frame);
        } else if (session.state() != Session.State.ENDED) {
            session.waitingFrames.add(frame);
        }
    }
}
