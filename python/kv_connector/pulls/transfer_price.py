"""What it takes to get tokens from another engine, fitted from what this engine has seen. Pure but for the clock.

A price has four parts: the session is opened if there is none, the other engine answers, what is on its way already
goes first, and the tokens move. Each is a median of recent observations in which newer ones weigh more, so a single
stall changes nothing and an engine that has become slow is known after three transfers.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kv_connector.configuration.messenger_addresses import Messengers

KNOWN_SECONDS = 60.0
"""How long an observation says something of now: links and engines change."""
DEAD_SECONDS = 10.0
"""How long an engine that could not be reached, or ended within a transfer, is not chosen where others are named."""
OBSERVED_MAX = 10
SOURCES_MAX = 256
"""Requests name the engines: those named longest ago are forgotten, first such as have never answered."""
WEIGHT_OF_EARLIER = 0.8
"""An observation's weight beside that of the next one: three new ones outweigh seven before them."""
SPREAD_MIN = 1.25
"""Sizes closer than this say nothing of what part of a transfer grows with its size."""
BEYOND_LARGEST = 2.0
"""Up to how many times the largest transfer that was seen a price is known, if others were smaller."""
LATE_FACTOR = 2.0
"""With each answer in a row that does not come in time an engine rests so many times as long, at first for a minute."""
LATE_IN_A_ROW_MAX = 6
"""More of them make no difference: after about an hour an engine is tried again."""
LATE_MARGIN = 2.0
"""Waits that differ by this factor are of different lengths: what was late for one may be in time for the other."""
TRIES_MAX = 3
"""After how many answers an engine that has moved nothing is not tried for the sake of its price any more."""


@dataclass(frozen=True, slots=True)
class TransferPrice:
    """What getting some tokens from an engine is expected to take now."""

    open_seconds: float
    """0 where a session is open."""
    answer_seconds: float
    queue_seconds: float
    """What is on its way from that engine already."""
    move_seconds: float
    known: bool
    """Whether that engine itself has moved about as many tokens lately; otherwise it is a guess by all engines."""

    @property
    def seconds(self) -> float:
        """In all."""
        return self.open_seconds + self.answer_seconds + self.queue_seconds + self.move_seconds


@dataclass(frozen=True, slots=True)
class MoveFit:
    """A transfer takes a time of its own, and some for each token."""

    fixed_seconds: float
    seconds_per_token: float

    def seconds_of(self, tokens: int) -> float:
        """How long that many tokens take; none take none."""
        return self.fixed_seconds + self.seconds_per_token * tokens if tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """For transfers of these sizes a price is known, and for so long if nothing more is seen."""

    tokens_min: int
    tokens_max: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Seen:
    at_seconds: float
    value: float
    tokens: int = 0


def _few() -> deque[_Seen]:
    return deque(maxlen=OBSERVED_MAX)


@dataclass(slots=True)
class _Observations:
    """Of one engine or of all, oldest first."""

    openings: deque[_Seen] = field(default_factory=_few)
    """Of questions whose answer needed a session first."""
    answers: deque[_Seen] = field(default_factory=_few)
    moves: deque[_Seen] = field(default_factory=_few)


@dataclass(slots=True)
class _Source(_Observations):
    moving_tokens: int = 0
    shared_at_seconds: float = 0.0
    shared_seconds: float = 0.0
    """For how long each token has had the engine to itself, of those that move all the time."""
    open_questions: int = 0
    has_session: bool = False
    has_answered: bool = False
    """Ever, so that there is such an engine: clients name what they like."""
    dead_until_seconds: float = float("-inf")
    late_in_a_row: int = 0
    late_seconds: float = 0.0
    """For how long they were waited for, the longest of them."""
    late_until_seconds: float = float("-inf")

    @property
    def is_awaited(self) -> bool:
        """Whether it has been asked, or moves tokens, and that is not over."""
        return self.open_questions > 0 or self.moving_tokens > 0


class TransferPrices:
    """The prices of one engine's transfers, by the engine they come from. Used by one thread."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._sources: OrderedDict[Messengers, _Source] = OrderedDict()
        self._all = _Observations()
        """What an engine of which nothing is known is expected to be like."""
        self.change_count = 0
        """Grows with everything that is seen."""

    # ---- what is seen

    def asked(self, source: Messengers) -> None:
        """A question leaves for the engine; ``question_over`` ends it, whatever it leads to."""
        self._of(source).open_questions += 1

    def question_over(self, source: Messengers) -> None:
        """What began with a question has ended."""
        seen = self._of(source)
        seen.open_questions = max(0, seen.open_questions - 1)

    def answered(self, source: Messengers, seconds: float) -> None:
        """The engine has answered a question after this time; the first one of a session opens it as well."""
        seen = self._of(source)
        for each in (seen, self._all):
            (each.answers if seen.has_session else each.openings).append(_Seen(self._now_seconds(), seconds))
        seen.has_session, seen.has_answered = True, True
        seen.late_in_a_row, seen.late_seconds = 0, 0.0
        seen.late_until_seconds, seen.dead_until_seconds = float("-inf"), float("-inf")

    def late(self, source: Messengers, seconds: float) -> None:
        """The engine has not answered within this time: it takes that long at least.

        A short prompt waits for a millisecond. That this was too short says nothing of longer waits.
        """
        seen = self._of(source)
        now_seconds = self._now_seconds()
        if seconds >= self._median_of(seen.answers, ()):
            seen.answers.append(_Seen(now_seconds, seconds))
        rests = now_seconds < seen.late_until_seconds
        if rests and LATE_MARGIN * seconds <= seen.late_seconds:
            return
        if seconds >= LATE_MARGIN * seen.late_seconds:
            seen.late_in_a_row = 0
        seen.late_seconds = max(seen.late_seconds, seconds) if rests else seconds
        seen.late_until_seconds = now_seconds + KNOWN_SECONDS * LATE_FACTOR**seen.late_in_a_row
        seen.late_in_a_row = min(seen.late_in_a_row + 1, LATE_IN_A_ROW_MAX)

    def lost(self, source: Messengers) -> None:
        """The engine could not be reached, or has ended within a transfer."""
        seen = self._of(source)
        seen.has_session, seen.dead_until_seconds = False, self._now_seconds() + DEAD_SECONDS

    def moves(self, source: Messengers, tokens: int) -> float:
        """A transfer of the tokens begins; returns a mark for ``over``, which ends it."""
        seen = self._shared(source)
        seen.moving_tokens += tokens
        return seen.shared_seconds

    def over(self, source: Messengers, tokens: int, mark: float) -> float:
        """A transfer of the tokens has ended, whatever came of it; returns its part of the time.

        Transfers beside each other share a link, so each takes longer than it would alone. Its part is that of its
        tokens among all that move, at each moment; 0 if that is not known.
        """
        seen = self._shared(source)
        seen.moving_tokens = max(0, seen.moving_tokens - tokens)
        return max(0.0, tokens * (seen.shared_seconds - mark))

    def _shared(self, source: Messengers) -> _Source:
        """What is known of the engine, with the time until now shared among the tokens that move."""
        seen, now_seconds = self._of(source), self._now_seconds()
        if seen.moving_tokens:
            seen.shared_seconds += (now_seconds - seen.shared_at_seconds) / seen.moving_tokens
        seen.shared_at_seconds = now_seconds
        return seen

    def moved(self, source: Messengers, tokens: int, seconds: float) -> None:
        """The tokens have arrived after this time, without the wait for the answer and what others took meanwhile."""
        if tokens > 0:
            self._of(source).has_answered = True
            for each in (self._of(source), self._all):
                each.moves.append(_Seen(self._now_seconds(), seconds, tokens))

    def stalled(self, source: Messengers, tokens: int, seconds: float) -> None:
        """The tokens had not arrived after this time, when the transfer ended: they take that long at least."""
        fit = self.fit(source)
        if fit is not None and seconds > fit.seconds_of(tokens):
            self.moved(source, tokens, seconds)

    def _of(self, source: Messengers) -> _Source:
        self.change_count += 1
        seen = self._sources.setdefault(source, _Source())
        self._sources.move_to_end(source)
        if len(self._sources) > SOURCES_MAX:
            self._forget_one(source)
        return seen

    def _forget_one(self, newest: Messengers) -> None:
        """None from which something is awaited: requests are fewer, and what they end is to be found."""
        idle = [each for each, seen in self._sources.items() if each != newest and not seen.is_awaited]
        made_up = (each for each in idle if not self._sources[each].has_answered)
        if (forgotten := next(made_up, idle[0] if idle else None)) is not None:
            del self._sources[forgotten]

    # ---- what it is worth

    def price(self, source: Messengers, tokens: int, fit: MoveFit | None = None) -> TransferPrice | None:
        """What that many tokens from the engine take now; None where no engine has shown any of it.

        ``fit`` is that of the engine, if the caller has it.
        """
        seen = self._sources.get(source, _Source())
        fit = fit or self.fit(source)
        if fit is None:
            return None
        answer_seconds = self._median_of(seen.answers, self._all.answers)
        opening_seconds = 0.0 if seen.has_session else self._median_of(seen.openings, self._all.openings)
        return TransferPrice(
            open_seconds=max(0.0, opening_seconds - answer_seconds),
            answer_seconds=answer_seconds,
            queue_seconds=fit.seconds_per_token * seen.moving_tokens,
            move_seconds=fit.seconds_of(tokens),
            known=self.knows(source, tokens),
        )

    def fit(self, source: Messengers) -> MoveFit | None:
        """How its transfers grow with their size: by its own, else by those of all engines."""
        own = self._recent(self._sources.get(source, _Source()).moves)
        if _are_of_different_sizes(own):
            return _line(own)
        prior = self._recent(self._all.moves)
        of_all = _line(prior) if _are_of_different_sizes(prior) else _through(prior, 0.0) if prior else None
        return of_all if of_all is None or not own else _through(own, of_all.fixed_seconds)

    def knows(self, source: Messengers, tokens: int) -> bool:
        """Whether the engine has moved about as many tokens lately."""
        known = self.known(source)
        return known is not None and known.tokens_min <= tokens <= known.tokens_max

    def known(self, source: Messengers) -> Known | None:
        """For which sizes the price is known, and how long; None where it is a guess."""
        moves = self._recent(self._sources.get(source, _Source()).moves)
        if not moves:
            return None
        sizes = [each.tokens for each in moves]
        beyond = BEYOND_LARGEST if _are_of_different_sizes(moves) else SPREAD_MIN
        seconds = moves[-1].at_seconds + KNOWN_SECONDS - self._now_seconds()
        return Known(min(sizes), int(beyond * max(sizes)), seconds)

    def is_dead(self, source: Messengers) -> bool:
        """Whether the engine was lost a moment ago, and has not answered since."""
        return self.dead_seconds(source) > 0

    def dead_seconds(self, source: Messengers) -> float:
        """How much longer the engine counts as dead; 0 if it does not."""
        seen = self._sources.get(source)
        return 0.0 if seen is None else max(0.0, seen.dead_until_seconds - self._now_seconds())

    def is_moving(self) -> bool:
        """Whether tokens are on their way from any engine."""
        return any(seen.moving_tokens for seen in self._sources.values())

    def cheapest(self, sources: Sequence[Messengers], tokens: int, wait_seconds: float = 0.0) -> Messengers | None:
        """The engine from which the tokens come soonest, of those that are not dead; None if all of them are.

        One that has moved nothing lately is tried first, by one prompt at a time, so that it becomes known; one that
        has not answered within ``wait_seconds``, for which its answer would be waited for, or longer, comes last, for
        longer each time. Where nothing else decides, it is the one that is named first.
        """
        living = [source for source in sources if not self.is_dead(source)]
        return min(living, key=lambda source: self._rank(source, tokens, wait_seconds), default=None)

    def _rank(self, source: Messengers, tokens: int, wait_seconds: float) -> tuple[bool, bool, float]:
        seen = self._sources.get(source, _Source())
        answer_count = len(self._recent(seen.answers)) + len(self._recent(seen.openings))
        was_tried = seen.is_awaited or answer_count >= TRIES_MAX or bool(self._recent(seen.moves))
        price = self.price(source, tokens)
        is_late = self._now_seconds() < seen.late_until_seconds and wait_seconds < LATE_MARGIN * seen.late_seconds
        return is_late, was_tried, 0.0 if price is None else price.seconds

    def sources(self) -> Iterator[Messengers]:
        """Those that were seen, in the order of their last use."""
        return iter(tuple(self._sources))

    def has_answered(self, source: Messengers) -> bool:
        """Whether there is such an engine, as far as is known: one that was only named has never answered."""
        return self._sources.get(source, _Source()).has_answered

    def _recent(self, seen: Iterable[_Seen]) -> list[_Seen]:
        oldest_seconds = self._now_seconds() - KNOWN_SECONDS
        return [each for each in seen if each.at_seconds >= oldest_seconds]

    def _median_of(self, own: Iterable[_Seen], of_all: Iterable[_Seen]) -> float:
        """The median of the engine's own observations, else of all engines'; 0 where there are none."""
        seen = self._recent(own) or self._recent(of_all)
        return _median([(each.value, weight) for each, weight in _weighed(seen)]) if seen else 0.0


def _weighed(seen: Sequence[_Seen]) -> list[tuple[_Seen, float]]:
    newest = len(seen) - 1
    return [(each, WEIGHT_OF_EARLIER ** (newest - index)) for index, each in enumerate(seen)]


def _median(values: Sequence[tuple[float, float]]) -> float:
    """The value at which half of the weight is reached."""
    ordered = sorted(values)
    left = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]


def _are_of_different_sizes(seen: Sequence[_Seen]) -> bool:
    sizes = [each.tokens for each in seen]
    return bool(sizes) and max(sizes) >= SPREAD_MIN * min(sizes)


def _line(seen: Sequence[_Seen]) -> MoveFit:
    """The line through transfers of different sizes."""
    weighed = _weighed(seen)
    slopes = [
        ((b.value - a.value) / (b.tokens - a.tokens), a_weight * b_weight)
        for index, (a, a_weight) in enumerate(weighed)
        for b, b_weight in weighed[index + 1 :]
        if max(a.tokens, b.tokens) >= SPREAD_MIN * min(a.tokens, b.tokens)
    ]
    slope = max(0.0, _median(slopes))
    fixed = _median([(each.value - slope * each.tokens, weight) for each, weight in weighed])
    return MoveFit(fixed, slope) if fixed >= 0 else _through(seen, 0.0)


def _through(seen: Sequence[_Seen], fixed_seconds: float) -> MoveFit:
    """A line through transfers whose sizes are alike; of the time of each, half at most is fixed."""
    weighed = _weighed(seen)
    fixed = min(fixed_seconds, 0.5 * _median([(each.value, weight) for each, weight in weighed]))
    slope = _median([((each.value - fixed) / each.tokens, weight) for each, weight in weighed])
    return MoveFit(fixed, max(0.0, slope))
