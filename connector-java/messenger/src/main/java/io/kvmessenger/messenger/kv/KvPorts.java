package io.kvmessenger.messenger.kv;

import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.transfer.TransferEngine;
import java.util.random.RandomGenerator;

/** The ports through which a KV cache reaches its engine, the transfer engine and the clock. */
public record KvPorts(
        TransferEngine transfer,
        EngineEvents engine,
        EngineIntake intake,
        LayerProgress progress,
        Tally tally,
        History history,
        NanoClock clock,
        RandomGenerator random) {}
