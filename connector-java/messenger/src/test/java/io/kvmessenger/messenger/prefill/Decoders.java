package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.CountingTally;
import io.kvmessenger.messenger.SilentEngine;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.kv.FittingPeers;
import io.kvmessenger.messenger.kv.KvSession;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.session.ReadySessions;

/** Sessions with decoders that have attached, for tests of one class. */
final class Decoders {
    private Decoders() {}

    static DecoderSession attached(KvGeometry own, KvGeometry decoder) {
        return attached(own, decoder, Wire.DIALLED_LINK);
    }

    static DecoderSession attached(KvGeometry own, KvGeometry decoder, long link) {
        DecoderSession session = new DecoderSession(
                new KvSession.Side(own, new SilentEngine(), new CountingTally()), link, "there:1", null);
        FittingPeers.introduce(session, decoder);
        session.agreesUpon(ProtocolLimits.PROTOCOL_VERSION);
        ReadySessions.ready(session);
        return session;
    }
}
