package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.Messengers;
import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.transfer.NoTransportException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** The open messengers of this process, by handle. Safe from any thread. */
public final class MessengerHost implements Messengers {
    /** What peers are told of an engine that gives no other reason. */
    private static final String SHUTTING_DOWN = "is shutting down";

    private final Map<Long, OpenMessenger> open = new ConcurrentHashMap<>();
    private final AtomicLong nextHandle = new AtomicLong(1);

    @Override
    public OpenResult open(byte[] request) {
        try {
            OpenMessenger messenger = OpenMessenger.open(OpenRequest.read(request));
            long handle = nextHandle.getAndIncrement();
            open.put(handle, messenger);
            return messenger.result(handle);
        } catch (IllegalArgumentException | NoTransportException e) { // the user can change options or geometry
            throw new RefusedException(e.getMessage(), e);
        }
    }

    @Override
    public void submit(long handle, byte[] request) {
        try {
            at(handle).submit(request);
        } catch (IllegalArgumentException e) {
            throw new RefusedException(e.getMessage(), e);
        }
    }

    @Override
    public byte[] poll(long handle, int capacityBytes) {
        return at(handle).poll(capacityBytes);
    }

    @Override
    public byte[] stats(long handle) {
        return at(handle).stats();
    }

    @Override
    public byte[] fence(long handle, byte[] request) {
        try {
            return at(handle).fence(request);
        } catch (IllegalArgumentException e) {
            throw new RefusedException(e.getMessage(), e);
        }
    }

    @Override
    public void await(long handle, byte[] request) {
        at(handle).await(request);
    }

    @Override
    public byte[] leakCheck(long handle) {
        return at(handle).leakCheck();
    }

    @Override
    public void close(long handle, byte[] request) {
        String why = request.length == 0
                ? SHUTTING_DOWN
                : RequestJson.parse("close", request).text("why");
        OpenMessenger messenger = open.remove(handle);
        if (messenger != null) {
            messenger.close(why);
        }
    }

    private OpenMessenger at(long handle) {
        OpenMessenger messenger = open.get(handle);
        if (messenger == null) {
            throw new RefusedException("handle " + handle + " names no open messenger: open one first");
        }
        return messenger;
    }
}
