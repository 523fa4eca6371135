package io.kvmessenger.connector;

import io.kvmessenger.messenger.SubjectOpener;
import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.kv.KvDescription;
import io.kvmessenger.messenger.port.Fields;

/** Opens messengers of a KV cache. */
public final class KvOpener implements SubjectOpener {
    @Override
    public String kind() {
        return KvDescription.KIND;
    }

    @Override
    public SubjectRequest read(Fields options, Fields subject) {
        return KvRequest.read(options, subject);
    }
}
