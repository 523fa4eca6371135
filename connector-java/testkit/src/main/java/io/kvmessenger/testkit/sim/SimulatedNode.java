package io.kvmessenger.testkit.sim;

import io.kvmessenger.hooks.WatchPeriod;
import io.kvmessenger.messenger.KvCache;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.EngineCommand;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Consumer;
import java.util.function.IntSupplier;
import java.util.function.LongConsumer;
import java.util.function.UnaryOperator;

/**
 * One engine process: its inbox, and the duty cycle of its messenger. It sleeps exactly as the real one does, until an
 * input, a completion or the messenger's own deadline, so that a forgotten deadline is exposed.
 *
 * <p>A restarted node is another object with another incarnation.
 */
final class SimulatedNode {
    private static final long STEP_WITHIN_NS = 2 * Scenario.MILLI;

    private final SimulatedClock clock;
    private final SimulatedThread thread;
    private final String name;
    private final long incarnation;
    private final double slowness;
    private long clockOffsetNs;
    private final ArrayDeque<Consumer<Messenger>> inbox = new ArrayDeque<>();
    private final WatchPeriod watchPeriod;
    private final List<Runnable> whenRunning = new ArrayList<>();
    private Messenger messenger;
    private KvCache cache;
    private UnaryOperator<EngineCommand> heard = UnaryOperator.identity();
    private LongConsumer onAccepted = id -> {};
    private final List<Runnable> whenDead = new ArrayList<>();
    private boolean alive = true;
    private boolean diedSilently;
    private long pausedUntilNs;
    private long lastStepNs;

    SimulatedNode(
            SimulatedClock clock,
            SplittableRandom random,
            String name,
            long incarnation,
            double slowness,
            long clockOffsetNs) {
        this.clock = clock;
        this.name = name;
        this.incarnation = incarnation;
        this.slowness = slowness;
        this.clockOffsetNs = clockOffsetNs;
        watchPeriod = new WatchPeriod(clock.nowNs());
        thread = new SimulatedThread(clock, random, this, this::doWork);
    }

    void start(Messenger messenger, KvCache cache) {
        this.cache = cache;
        start(messenger);
    }

    /** Of a messenger without a KV cache, which takes no commands of an engine. */
    void start(Messenger messenger) {
        this.messenger = messenger;
        wake();
    }

    String name() {
        return name;
    }

    long incarnation() {
        return incarnation;
    }

    /** Name of this incarnation of the node. */
    String process() {
        return name + "#" + incarnation;
    }

    /** Where it listens for control links. */
    String address() {
        return name + ":1";
    }

    Messenger messenger() {
        return messenger;
    }

    KvCache cache() {
        return cache;
    }

    /** The process's own monotonic clock, with an origin of its own. */
    long nowNs() {
        return clock.nowNs() + clockOffsetNs;
    }

    long worldNs() {
        return clock.nowNs();
    }

    boolean alive() {
        return alive;
    }

    boolean diedSilently() {
        return diedSilently;
    }

    double slowness() {
        return slowness;
    }

    long pausedUntilNs() {
        return pausedUntilNs;
    }

    boolean paused() {
        return clock.nowNs() < pausedUntilNs;
    }

    void onAccepted(LongConsumer onAccepted) {
        this.onAccepted = onAccepted;
    }

    void accepted(long link) {
        onAccepted.accept(link);
    }

    /** @param heard returns the command as the messenger sees it; null if it is lost */
    void hearCommandsAs(UnaryOperator<EngineCommand> heard) {
        this.heard = heard;
    }

    void input(Consumer<Messenger> input) {
        if (alive) {
            inbox.addLast(input);
            wake();
        }
    }

    void command(EngineCommand command) {
        input(m -> {
            EngineCommand taken = heard.apply(command);
            if (taken != null) {
                cache.onCommand(taken);
            }
        });
    }

    /** Its clock jumps forward, as after a suspension of the machine; what it waits for may be overdue now. */
    void jump(long lengthNs) {
        clockOffsetNs += lengthNs;
        wake();
    }

    /** Suspends its threads, as SIGSTOP does; memory and sockets stay. */
    void pause(long untilNs) {
        pausedUntilNs = Math.max(pausedUntilNs, untilNs);
        clock.at(pausedUntilNs, this::resume);
    }

    void resume() {
        if (!paused()) {
            List<Runnable> waiting = List.copyOf(whenRunning);
            whenRunning.clear();
            waiting.forEach(this::whenRunning);
        }
    }

    void endPause() {
        pausedUntilNs = clock.nowNs();
        resume();
        wake();
    }

    /** Runs now, or when the process resumes; even if it has died meanwhile. */
    void whenRunning(Runnable action) {
        if (alive && paused()) {
            whenRunning.add(action);
        } else {
            action.run();
        }
    }

    /** Runs when the process has died. */
    void whenDead(Runnable action) {
        whenDead.add(action);
    }

    /** Runs what the core of an engine of several messengers has decided, soon and in order, if the process lives. */
    void inNextStep(SplittableRandom random, Runnable action) {
        lastStepNs = Math.max(lastStepNs, clock.nowNs() + random.nextLong(STEP_WITHIN_NS));
        clock.at(
                lastStepNs,
                () -> whenRunning(() -> {
                    if (alive) {
                        action.run();
                    }
                }));
    }

    void die(boolean silentDeath) {
        alive = false;
        diedSilently = silentDeath;
        pausedUntilNs = 0;
        inbox.clear();
        resume();
        whenDead.forEach(Runnable::run);
        whenDead.clear();
    }

    /** A wake-up was signalled: schedules a duty cycle of the messenger. */
    void wake() {
        if (messenger != null) {
            watchPeriod.onWork(clock.nowNs());
            thread.wake();
        }
    }

    /** The work done, of which the fault of a port is some: the agent's thread logs it, {@code MessengerAgent.guarded}. */
    private static int guarded(IntSupplier step) {
        try {
            return step.getAsInt();
        } catch (PlantedFault fault) {
            return 1;
        }
    }

    private int takeInputs() {
        int inputs = inbox.size();
        while (!inbox.isEmpty()) {
            inbox.removeFirst().accept(messenger);
        }
        return inputs;
    }

    private void doWork() {
        int work = guarded(this::takeInputs);
        work += guarded(messenger::doWork);
        if (work > 0) {
            wake();
        } else if (messenger.watching()) {
            thread.turnAt(clock.nowNs() + watchPeriod.periodNs(clock.nowNs()));
        } else {
            thread.turnAt(messenger.nextDeadlineNs() - clockOffsetNs);
        }
    }
}
