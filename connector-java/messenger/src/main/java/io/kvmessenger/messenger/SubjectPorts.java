package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.EventSink;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.transfer.TransferEngine;
import java.util.concurrent.Executor;
import java.util.random.RandomGenerator;

/**
 * What a subject is given by the messenger that is to carry it.
 *
 * @param onThread runs a task on the messenger's thread, in order; any thread may call it
 */
public record SubjectPorts(
        Sessions sessions,
        TransferEngine transfer,
        EventSink events,
        ProtocolLimits limits,
        Tally tally,
        NanoClock clock,
        RandomGenerator random,
        Executor onThread) {}
