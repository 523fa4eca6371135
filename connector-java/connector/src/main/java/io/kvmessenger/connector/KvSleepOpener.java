package io.kvmessenger.connector;

import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.SleepingKvCache;
import io.kvmessenger.messenger.SubjectOpener;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.session.Sessions;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Opens what stands in for the messenger of a KV cache while its engine sleeps: it keeps the ports, and refuses peers.
 */
public final class KvSleepOpener implements SubjectOpener {
    private static final String KIND = "sleeping_kv_cache";

    @Override
    public String kind() {
        return KIND;
    }

    @Override
    public SubjectRequest read(Fields options, Fields subject) {
        return new Request(
                options.text("engineId"),
                KvRequest.Role.valueOf(options.text("role").toUpperCase(Locale.ROOT)));
    }

    private record Request(String engineId, KvRequest.Role role) implements SubjectRequest {
        @Override
        public boolean listens() {
            return role.listens();
        }

        @Override
        public EngineSubject open(SubjectPorts ports) {
            return new SleepingEngine(new SleepingKvCache(engineId), ports);
        }
    }

    private record SleepingEngine(SleepingKvCache cache, Sessions sessions, NanoClock clock) implements EngineSubject {
        SleepingEngine(SleepingKvCache cache, SubjectPorts ports) {
            this(cache, ports.sessions(), ports.clock());
        }

        @Override
        public ServedSubject served() {
            return cache;
        }

        @Override
        public List<Runnable> commands(List<Fields> commands) {
            throw new IllegalArgumentException("a command came while the engine sleeps, expected none: open a messenger"
                    + " of its KV cache first");
        }

        @Override
        public Map<String, Integer> held() {
            return Map.of();
        }

        @Override
        public MessengerState describe(int rowsMax) {
            return new MessengerState(
                    sessions.rows(clock.nowNs()), 0, List.of(), 0, List.of(), 0, List.of(), List.of(), List.of());
        }

        @Override
        public String notReady() {
            return "asleep: the engine has given its KV memory back";
        }

        @Override
        public void close() {}
    }
}
