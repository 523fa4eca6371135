package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.PrefillTimeline;
import java.util.ArrayList;
import java.util.List;

/** An engine that is told of connections only; keeps the lines of its log. */
public final class SilentEngine implements EngineEvents {
    public final List<String> lines = new ArrayList<>();

    @Override
    public void released(String request) {}

    @Override
    public void arrived(String request, int pageCount) {}

    @Override
    public void failed(String request, String reason) {}

    @Override
    public void timeline(PrefillTimeline timeline) {}

    @Override
    public void timeline(FetchTimeline timeline) {}

    @Override
    public void log(Level level, String message) {
        lines.add(level + " " + message);
    }
}
