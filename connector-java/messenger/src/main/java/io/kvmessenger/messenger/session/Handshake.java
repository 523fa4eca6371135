package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.ProtocolVersions;
import io.kvmessenger.messenger.wire.Challenge;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.SubjectDescription;
import io.kvmessenger.messenger.wire.Welcome;
import java.util.Optional;
import java.util.random.RandomGenerator;

/**
 * The messages by which two messengers find out whether they fit: Challenge of the listener, Hello of the dialler,
 * Welcome. Each side proves the secret over all messages so far, and from then on seals its frames.
 *
 * <p>Owned by the messenger's thread. It changes what a session knows of its peer, but neither sends nor ends
 * anything: it returns what follows.
 */
final class Handshake {
    /** The side that listens, in the keys and proofs of every version. */
    private static final String LISTENER = "prefiller";
    /** The side that dials, likewise. */
    private static final String DIALLER = "decoder";
    /** Refused field: the peer's subject is of another kind. */
    private static final String SUBJECT = "subject";

    private final MessengerIdentity identity;
    private final Subject subject;
    private final RandomGenerator random;

    /** What follows a message. */
    sealed interface Step {
        /**
         * The peer is answered.
         *
         * @param seal of the frames after this answer; null without a secret
         */
        record Answer(ControlFrame.Builder frame, FrameSeal seal) implements Step {}

        /** The peer is proven and fits. */
        record Proven() implements Step {}

        /** It does not fit. */
        record Refused(Misfit why) implements Step {}

        /** The message is not allowed now. */
        record OutOfPlace() implements Step {}
    }

    private static final Step OUT_OF_PLACE = new Step.OutOfPlace();

    Handshake(MessengerIdentity identity, Subject subject, RandomGenerator random) {
        this.identity = identity;
        this.subject = subject;
        this.random = random;
    }

    /** Listener: the first message. */
    ControlFrame.Builder challenge(Session session) {
        session.ownNonce = nonce();
        Challenge challenge = Challenge.newBuilder()
                .setProtocolVersion(identity.versions().oldest())
                .setNewestVersion(identity.versions().newest())
                .setEngineId(identity.engineId())
                .setIncarnation(identity.incarnation())
                .setNonce(ByteString.copyFrom(session.ownNonce))
                .build();
        session.transcript = HandshakeProof.transcript(session.transcript, challenge);
        return ControlFrame.newBuilder().setChallenge(challenge);
    }

    /** Dialler. */
    Step onChallenge(Session session, Challenge challenge) {
        if (session.inbound || session.ownNonce.length != 0) {
            return OUT_OF_PLACE;
        }
        session.peerEngineId = challenge.getEngineId();
        session.peerIncarnation = challenge.getIncarnation();
        Optional<Misfit> versions =
                versions(session, ProtocolVersions.given(challenge.getProtocolVersion(), challenge.getNewestVersion()));
        if (versions.isPresent()) {
            return new Step.Refused(versions.get());
        }
        session.peerNonce = challenge.getNonce().toByteArray();
        session.ownNonce = nonce();
        session.keys = keys(session.peerNonce, session.ownNonce);
        Hello.Builder hello = Hello.newBuilder()
                .setProtocolVersion(identity.versions().oldest())
                .setNewestVersion(identity.versions().newest())
                .setEngineId(identity.engineId())
                .setIncarnation(identity.incarnation())
                .setNonce(ByteString.copyFrom(session.ownNonce))
                .setSubject(ownSubject());
        session.transcript =
                HandshakeProof.transcript(HandshakeProof.transcript(session.transcript, challenge), hello.build());
        hello.setProof(HandshakeProof.of(session.keys, DIALLER, session.transcript));
        return new Step.Answer(ControlFrame.newBuilder().setHello(hello), seal(session, DIALLER));
    }

    /** Listener. */
    Step onHello(Session session, Hello hello) {
        if (!session.inbound || session.peerNonce.length != 0) {
            return OUT_OF_PLACE;
        }
        session.peerEngineId = hello.getEngineId();
        session.peerIncarnation = hello.getIncarnation();
        session.peerNonce = hello.getNonce().toByteArray();
        Optional<Misfit> misfit =
                versions(session, ProtocolVersions.given(hello.getProtocolVersion(), hello.getNewestVersion()));
        if (misfit.isEmpty()) {
            session.keys = keys(session.ownNonce, session.peerNonce);
            session.transcript = HandshakeProof.transcript(
                    session.transcript, hello.toBuilder().clearProof().build());
            misfit = misfit(session, DIALLER, hello.getProof(), hello.getSubject());
        }
        if (misfit.isPresent()) {
            return new Step.Refused(misfit.get());
        }
        session.sealIn = seal(session, DIALLER);
        Welcome.Builder welcome = Welcome.newBuilder().setSubject(ownSubject());
        session.transcript = HandshakeProof.transcript(session.transcript, welcome.build());
        welcome.setProof(HandshakeProof.of(session.keys, LISTENER, session.transcript));
        return new Step.Answer(ControlFrame.newBuilder().setWelcome(welcome), seal(session, LISTENER));
    }

    /** Dialler. */
    Step onWelcome(Session session, Welcome welcome) {
        if (session.inbound || session.peerNonce.length == 0 || session.ready()) {
            return OUT_OF_PLACE;
        }
        session.transcript = HandshakeProof.transcript(
                session.transcript, welcome.toBuilder().clearProof().build());
        Optional<Misfit> misfit = misfit(session, LISTENER, welcome.getProof(), welcome.getSubject());
        if (misfit.isPresent()) {
            return new Step.Refused(misfit.get());
        }
        session.sealIn = seal(session, LISTENER);
        return new Step.Proven();
    }

    /** Both sides know both ranges and select the newest common version without a further message. */
    private Optional<Misfit> versions(Session session, ProtocolVersions peer) {
        int agreed = identity.versions().agreedWith(peer);
        if (agreed != ProtocolVersions.NONE) {
            session.agreesUpon(agreed);
            return Optional.empty();
        }
        return Optional.of(new Misfit(
                "protocol_version",
                "protocol_version is " + peer + " at " + session.peerName()
                        + " and " + identity.versions() + " at " + identity.engineId()
                        + ": install the same kv-connector on both sides, or two releases that follow each"
                        + " other",
                MessengerMetric.VERSIONS_DIFFERENT));
    }

    /** Why a peer that presents this does not fit. Its description counts only with a proof of the secret. */
    private Optional<Misfit> misfit(Session session, String side, ByteString proof, SubjectDescription peer) {
        if (!HandshakeProof.matches(HandshakeProof.of(session.keys, side, session.transcript), proof)) {
            return Optional.of(new Misfit(
                    "shared_secret",
                    "shared_secret differs between " + identity.engineId() + " and " + session.peerName()
                            + ": set the same value on both sides",
                    MessengerMetric.SECRETS_DIFFERENT));
        }
        if (!peer.getSubjectKind().equals(subject.kind())) {
            return Optional.of(new Misfit(
                    SUBJECT,
                    "subject is '" + peer.getSubjectKind() + "' at " + session.peerName() + " and '"
                            + subject.kind() + "' at " + identity.engineId()
                            + ": connect messengers that move the same",
                    MessengerMetric.GEOMETRIES_DIFFERENT));
        }
        return session.misfit(peer.getDescription());
    }

    private SubjectDescription.Builder ownSubject() {
        return SubjectDescription.newBuilder().setSubjectKind(subject.kind()).setDescription(subject.description());
    }

    /** Null without a secret. */
    private SessionKeys keys(byte[] listenerNonce, byte[] diallerNonce) {
        byte[] secret = identity.sharedSecret();
        return secret.length == 0 ? null : SessionKeys.of(secret, listenerNonce, diallerNonce);
    }

    private static FrameSeal seal(Session session, String sender) {
        return session.keys == null ? null : new FrameSeal(session.keys.keyFor("frames of the " + sender));
    }

    private byte[] nonce() {
        byte[] nonce = new byte[HandshakeProof.NONCE_LENGTH_BYTES];
        random.nextBytes(nonce);
        return nonce;
    }
}
