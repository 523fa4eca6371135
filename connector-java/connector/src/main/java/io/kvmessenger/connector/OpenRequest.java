package io.kvmessenger.connector;

import io.kvmessenger.messenger.SubjectOpener;
import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.Fields;
import java.util.Map;
import java.util.ServiceLoader;
import java.util.TreeMap;

/** An engine's request to open a messenger: the options of any messenger, and what this one is to move. A value. */
record OpenRequest(RuntimeOptions runtime, SubjectRequest subject) {
    /** @throws IllegalArgumentException with one sentence, for the user */
    static OpenRequest read(byte[] json) {
        Fields request = RequestJson.parse("open", json);
        Fields options = request.object("options");
        Fields subject = request.object("subject");
        return new OpenRequest(
                RuntimeOptions.read(options), opener(subject.text("kind")).read(options, subject));
    }

    private static SubjectOpener opener(String kind) {
        Map<String, SubjectOpener> known = new TreeMap<>();
        // Named, since a thread that the JVM has attached has no context class loader.
        ServiceLoader.load(SubjectOpener.class, OpenRequest.class.getClassLoader())
                .forEach(opener -> known.put(opener.kind(), opener));
        SubjectOpener opener = known.get(kind);
        if (opener == null) {
            throw new IllegalArgumentException("open.subject.kind is '" + kind + "', expected one of "
                    + String.join(", ", known.keySet())
                    + ": open a messenger for one of these, or add the jar that has this one to the class path");
        }
        return opener;
    }
}
