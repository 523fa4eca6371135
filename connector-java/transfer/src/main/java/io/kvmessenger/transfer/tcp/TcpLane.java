package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.path.Pause;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.Dialer;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Pulse;
import java.util.function.Function;

/**
 * The place of one data socket to a peer: dialled, used, lost, and dialled again after a pause.
 *
 * <p>Worker only. A broken socket is abandoned only when the target has said how many of its frames it has taken: from
 * then on none of the others can land or be counted. Each socket has its own serial number; records about earlier ones
 * are ignored.
 */
final class TcpLane implements Dialer.Events, TcpSendPath.Events {
    /** Pause between a loss and the next dial; doubled until a frame has been taken. */
    static final long REST_MIN_NS = 10_000_000L;

    static final long REST_MAX_NS = 1_000_000_000L;

    private static final int NONE = -1;

    private enum State {
        DIALLING,
        /** Connected; READY has not been received. */
        CONNECTED,
        OPEN,
        /** The socket is closed; the number of frames that the target has taken is unknown. */
        BROKEN,
        RESTING,
        CLOSED
    }

    interface Owner {
        EventLoop loop();

        /** A socket that connects to the target by a network, or {@code -errno}. */
        int openSocket(int network);

        Hello answer(Challenge asked, int role, int serial);

        /** From now on everything on the socket is sealed, if sealing is on. */
        void seal(int fd, Challenge asked, Hello given);

        String location();

        /** Sends a record about a path, if there is room for it now. */
        boolean report(int type, int role, int serial);

        void onConnected(TcpLane lane);

        /** @param again whether another dial may succeed */
        void onDialFailed(TcpLane lane, String detail, boolean again);

        void onOpened(TcpSendPath path);

        /** An open socket broke; the peer may have sent the reason. */
        void onBroken(TcpLane lane);

        /** Lets the wait for the peer's answer see whether the peer is reached. */
        void look(AnswerWait wait, long nowNs);

        /** How long the peer may leave a probe of an idle socket unanswered. */
        long idleLimitNs();

        void onEnded(TcpSendPath path);

        void onSent(long postId);

        void onError(Throwable error);
    }

    private final Owner owner;
    private final int role;
    private final int network;
    private State state = State.RESTING;
    private int serial;
    /** Of the socket that broke unused and whose break is still to be reported; {@link #NONE} if there is none. */
    private int unreported = NONE;

    private Dialer dialer;
    private TcpSendPath path;
    private boolean asked;
    /** Probes the idle socket; null if the peer does not know probes. */
    private Pulse pulse;

    /** For the target's count, once broken. */
    private AnswerWait answer;

    private final Pause pause = new Pause(REST_MIN_NS, REST_MAX_NS);
    /** When a dial is given up. */
    private long deadlineNs;

    TcpLane(Owner owner, int role, int network) {
        this.owner = owner;
        this.role = role;
        this.network = network;
    }

    void dial(long limitNs) {
        state = State.DIALLING;
        deadlineNs = limitNs;
        int number = serial;
        Function<Challenge, Hello> answer = given -> owner.answer(given, role, number);
        dialer = new Dialer(owner.loop(), owner.openSocket(network), owner.location(), answer, this);
    }

    @Override
    public void onAnswered(int fd, Challenge asked, Hello given) {
        pulse = given.givesHeartbeats()
                ? new Pulse(owner.idleLimitNs(), owner.loop().nowNs())
                : null;
        owner.seal(fd, asked, given);
    }

    @Override
    public void onConnected(int fd) {
        try {
            path = new TcpSendPath(owner.loop(), fd, network, this);
        } catch (IllegalStateException e) {
            owner.loop().libC().close(fd);
            onFailed(e.getMessage());
            return;
        }
        state = State.CONNECTED;
        owner.onConnected(this);
    }

    @Override
    public void onFailed(String detail) {
        rest();
        owner.onDialFailed(this, detail, false);
    }

    @Override
    public void onTurnedAway(String detail) {
        rest();
        owner.onDialFailed(this, detail, true);
    }

    /** The target accepts frames from now on. */
    void open() {
        state = State.OPEN;
        path.open();
        owner.onOpened(path);
    }

    boolean isOpen() {
        return state == State.OPEN;
    }

    void limitDial(long limitNs) {
        if (state == State.DIALLING && limitNs - deadlineNs < 0) {
            deadlineNs = limitNs;
        }
    }

    boolean isResting() {
        return state == State.RESTING;
    }

    boolean isConnected() {
        return state == State.CONNECTED;
    }

    /** Whether a socket of it has been connected, and may be gone again. */
    boolean wasConnected() {
        return isConnected() || serial > 0;
    }

    @Override
    public void onBreak() {
        if (state != State.OPEN) {
            onTurnedAwayLate();
            return;
        }
        state = State.BROKEN;
        answer = new AnswerWait(path.wasGivenUp(), owner.loop().nowNs());
        asked = false;
        path.close();
        owner.onBroken(this);
    }

    /** The target has hung up before the socket was used: nothing is lost, and it may take another. */
    private void onTurnedAwayLate() {
        unreported = serial;
        path.close();
        path = null;
        rest();
        reportBreak();
        owner.onDialFailed(this, "the peer broke a data path", true);
    }

    /** Returns whether nothing is left to be reported: until then the target may hold the place for the old socket. */
    private boolean reportBreak() {
        if (unreported != NONE && owner.report(TcpRecord.PATH_BROKEN, role, unreported)) {
            unreported = NONE;
        }
        return unreported == NONE;
    }

    /**
     * The target has taken {@code frames} frames of a socket; returns whether that is possible.
     *
     * @param ended whether it takes no more
     */
    boolean onProgress(int socketSerial, long frames, boolean ended) {
        if (socketSerial != serial || (state != State.OPEN && state != State.BROKEN)) {
            return socketSerial - serial <= 0;
        }
        long before = path.framesReported();
        if (!path.onTaken(frames)) {
            return false;
        }
        if (frames > before) {
            pause.onSuccess();
            if (pulse != null) {
                pulse.onHeard();
            }
        }
        if (ended && state != State.CLOSED) {
            TcpSendPath gone = path;
            path = null;
            gone.close();
            rest();
            owner.onEnded(gone);
        }
        return true;
    }

    /** Begins a pause. Serial numbers are not reused: the target may have seen the last socket, even if unused. */
    private void rest() {
        serial++;
        state = State.RESTING;
        pause.begin(owner.loop().nowNs());
    }

    @Override
    public void onSent(long postId) {
        owner.onSent(postId);
    }

    @Override
    public void onError(Throwable error) {
        owner.onError(error);
    }

    /**
     * Does the work without events; returns the amount done.
     *
     * @param dialLimitNs when a dial that begins now is given up
     */
    int doWork(long nowNs, long dialLimitNs) {
        switch (state) {
            case DIALLING -> {
                dialer.doWork();
                if (state == State.DIALLING && nowNs - deadlineNs > 0) {
                    dialer.close();
                    onFailed("no answer from " + owner.location() + " in time");
                }
            }
            case OPEN -> {
                int work = path.doWork();
                if (pulse != null && state == State.OPEN) {
                    watchIdle(nowNs);
                }
                return work;
            }
            case BROKEN -> {
                asked = asked || owner.report(TcpRecord.PATH_BROKEN, role, serial);
                owner.look(answer, nowNs);
            }
            case RESTING -> {
                if (reportBreak() && pause.isOver(nowNs)) {
                    dial(dialLimitNs);
                }
            }
            default -> {}
        }
        return 0;
    }

    /** Probes an idle socket, and gives it up if the probe is not answered. The engine watches one that is in use. */
    private void watchIdle(long nowNs) {
        pulse.look(nowNs);
        if (path.holdsOnlyProbe()) {
            if (pulse.isSilent()) {
                path.giveUp();
            }
            return;
        }
        pulse.onHeard();
        if (!path.isIdle()) {
            pulse.onGiven(nowNs);
        } else if (pulse.isDue(nowNs) && path.probe()) {
            pulse.onGiven(nowNs);
        }
    }

    /** Whether the target's count for a broken socket is overdue. */
    boolean isOverdue(long nowNs) {
        return state == State.BROKEN && answer.isOver(nowNs);
    }

    void close() {
        state = State.CLOSED;
        if (dialer != null) {
            dialer.close();
        }
        if (path != null) {
            path.close();
            path = null;
        }
    }
}
