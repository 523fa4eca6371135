"""Stories of SGLang's backend: the first ones of the seeds, and mutants that they must find.

More of them: ``__main__.py``.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("sglang_plugins")

STORIES = 200
WIDE_STORIES = 80
UPDATED_STORIES = 80
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_should_end_every_request_and_hold_nothing(part: int) -> None:
    from sglang_loop.story import draw
    from sglang_loop.world import World

    for seed in range(part, STORIES, PARTS):
        story = draw(seed)
        violations = World(story).run()
        assert not violations, f"{violations[0]}\n{story.describe()}"


def test_should_do_so_with_second_pools_checks_of_pairs_and_data_parallel_ranks() -> None:
    from sglang_loop.story import WIDE_FROM, draw
    from sglang_loop.world import World

    for seed in range(WIDE_FROM, WIDE_FROM + WIDE_STORIES):
        story = draw(seed)
        violations = World(story).run()
        assert not violations, f"{violations[0]}\n{story.describe()}"


def test_should_do_so_while_engines_are_given_other_weights() -> None:
    from sglang_loop.story import UPDATED_FROM, draw
    from sglang_loop.world import World

    for seed in range(UPDATED_FROM, UPDATED_FROM + UPDATED_STORIES):
        story = draw(seed)
        violations = World(story).run()
        assert not violations, f"{violations[0]}\n{story.describe()}"


def test_should_run_a_story_again_as_it_was() -> None:
    from sglang_loop.story import UPDATED_FROM, WIDE_FROM, draw
    from sglang_loop.world import World

    for seed in (2, 3, WIDE_FROM, UPDATED_FROM):
        worlds = [World(draw(seed)) for _run in range(2)]
        for world in worlds:
            assert not world.run()
        one, other = [(world.rounds, world.network.pages_written, world.network.now) for world in worlds]
        assert one == other


def test_should_find_the_backend_broken_on_purpose() -> None:
    from sglang_loop.mutants import MUTANTS
    from sglang_loop.story import draw
    from sglang_loop.world import World

    living = []
    for mutant in [each for each in MUTANTS if each.must_be_found]:
        with mutant.applied():
            violations = World(draw(mutant.seed)).run()
        if not violations:
            living.append(mutant.what)
    assert not living
