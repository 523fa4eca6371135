package io.kvmessenger.testkit.echo;

import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.SubjectOpener;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.transfer.Memory;

/**
 * Opens messengers that echo: {@code {"kind":"echo","word","address","lengthBytes","memfd"}}, or {@code "device"} in
 * place of {@code "memfd"} for memory of an accelerator that peers on this host may map.
 *
 * <p>A command {@code {"do":"ask","id","host","port","lengthBytes"}} ends with one event, {@code
 * {"event":"arrived","id"}} or {@code {"event":"failed","id","reason"}}.
 */
public final class EchoOpener implements SubjectOpener {
    /** @param word that both sides must have */
    private record Request(String word, Memory memory) implements SubjectRequest {
        @Override
        public boolean listens() {
            return true;
        }

        @Override
        public EngineSubject open(SubjectPorts ports) {
            return new EchoEngine(word, ports.transfer().register(memory), ports);
        }
    }

    @Override
    public String kind() {
        return EchoSubject.KIND;
    }

    @Override
    public SubjectRequest read(Fields options, Fields subject) {
        return new Request(subject.text("word"), memory(subject));
    }

    private static Memory memory(Fields subject) {
        long address = subject.integer("address");
        long lengthBytes = subject.integer("lengthBytes");
        return subject.has("device")
                ? new Memory.Device(subject.count("device"), address, lengthBytes, Memory.HandleKind.POSIX_FD)
                : Memory.hostAt(address, lengthBytes, (int) subject.integer("memfd"));
    }
}
