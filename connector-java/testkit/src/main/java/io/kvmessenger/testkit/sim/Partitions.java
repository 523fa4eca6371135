package io.kvmessenger.testkit.sim;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Which pairs of nodes cannot reach each other, on the control network, the fabric or both. */
final class Partitions {
    private final Set<String> controlCut = new LinkedHashSet<>();
    private final Set<String> dataCut = new LinkedHashSet<>();
    private final Map<String, List<Runnable>> waitingControl = new LinkedHashMap<>();
    private final Map<String, List<Runnable>> waitingData = new LinkedHashMap<>();

    void cut(String one, String other, boolean control, boolean data) {
        if (control) {
            controlCut.add(pair(one, other));
        }
        if (data) {
            dataCut.add(pair(one, other));
        }
    }

    void heal(String one, String other) {
        String pair = pair(one, other);
        controlCut.remove(pair);
        dataCut.remove(pair);
        run(waitingControl.remove(pair));
        run(waitingData.remove(pair));
    }

    void mendAll() {
        controlCut.clear();
        dataCut.clear();
        List.copyOf(waitingControl.keySet()).forEach(pair -> run(waitingControl.remove(pair)));
        List.copyOf(waitingData.keySet()).forEach(pair -> run(waitingData.remove(pair)));
    }

    boolean controlCut(String one, String other) {
        return controlCut.contains(pair(one, other));
    }

    boolean dataCut(String one, String other) {
        return dataCut.contains(pair(one, other));
    }

    void whenControlConnected(String one, String other, Runnable action) {
        runOrWait(controlCut, waitingControl, pair(one, other), action);
    }

    void whenDataConnected(String one, String other, Runnable action) {
        runOrWait(dataCut, waitingData, pair(one, other), action);
    }

    private static void runOrWait(Set<String> cut, Map<String, List<Runnable>> waiting, String pair, Runnable action) {
        if (cut.contains(pair)) {
            waiting.computeIfAbsent(pair, p -> new ArrayList<>()).add(action);
        } else {
            action.run();
        }
    }

    private static void run(List<Runnable> actions) {
        if (actions != null) {
            actions.forEach(Runnable::run);
        }
    }

    private static String pair(String one, String other) {
        return one.compareTo(other) < 0 ? one + "/" + other : other + "/" + one;
    }
}
