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
 * A decoder's sessions with prefillers, by address, dialled when they are first needed, and what is said on them of
 * transfers that are not granted. What is said before a session is ready waits for it; what its end overtakes is lost.
 *
 * <p>Owned by the messenger's thread. Of transfers it keeps which ones are expected, and no state.
 */
final class PrefillerLinks {
    private final Sessions sessions;
    private final Map<String, Session> byAddress = new HashMap<>();
    /** Transfers of which the engine waits to addAnswer that their prompts are computed. */
    private final Map<Session, Set<TransferKey>> expected = new HashMap<>();

    PrefillerLinks(Sessions sessions) {
        this.sessions = sessions;
    }

    Session at(EngineCommand.PrefillerAddress address, long nowNs) {
        return byAddress.computeIfAbsent(
                address.host() + ":" + address.port(), unknown -> sessions.dial(address.host(), address.port(), nowNs));
    }

    void each(List<EngineCommand.PrefillerAddress> addresses, long nowNs, Consumer<Session> told) {
        addresses.forEach(address -> told.accept(at(address, nowNs)));
    }

    /** No grant will come of this transfer. */
    void decline(Session session, TransferKey transfer) {
        decline(session, transfer, EngineCommand.Prompt.NONE);
    }

    /** No grant will come of this transfer; the prompt, if there is one, is wanted by others all the same. */
    void decline(Session session, TransferKey transfer, EngineCommand.Prompt prompt) {
        takeExpected(session, transfer);
        Decline.Builder decline =
                Decline.newBuilder().setTransferId(transfer.id()).setPromptDigest(transfer.digest());
        if (!prompt.absent()) {
            decline.setPrompt(PromptWire.encode(prompt));
        }
        send(session, ControlFrame.newBuilder().setDecline(decline));
    }

    /** A grant of this transfer will come, however long the engine's queue is. */
    void expect(Session session, TransferKey transfer) {
        expected.computeIfAbsent(session, unknown -> new HashSet<>()).add(transfer);
        send(
                session,
                ControlFrame.newBuilder()
                        .setExpect(
                                Expect.newBuilder().setTransferId(transfer.id()).setPromptDigest(transfer.digest())));
    }

    /** The request that would have fetched this transfer is not here; what its prompt was is not known. */
    void reject(Session session, String transferId) {
        send(
                session,
                ControlFrame.newBuilder().setRejected(Rejected.newBuilder().setTransferId(transferId)));
    }

    void onReady(Session session) {
        session.waitingFrames.forEach(frame -> sessions.send(session, frame));
        session.waitingFrames.clear();
    }

    /** The transfer need not be heard of any more. Returns whether it had to. */
    boolean takeExpected(Session session, TransferKey transfer) {
        Set<TransferKey> transfers = expected.get(session);
        if (transfers == null || !transfers.remove(transfer)) {
            return false;
        }
        if (transfers.isEmpty()) {
            expected.remove(session);
        }
        return true;
    }

    /** Returns the transfers that will not be heard of. */
    Set<TransferKey> onEnded(Session session) {
        byAddress.values().remove(session);
        Set<TransferKey> transfers = expected.remove(session);
        return transfers == null ? Set.of() : transfers;
    }

    private void send(Session session, ControlFrame.Builder frame) {
        if (session.ready()) {
            sessions.send(session, frame);
        } else if (session.state != Session.State.ENDED) {
            session.waitingFrames.add(frame);
        }
    }
}
