"""The exact search: breakpoints against dense grids, the promise not to lose to random draws, and
what it says of its optimum."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods.cade import BASELINE, Streams, decide, streams
from sdgbias.methods.search import (
    RANGES,
    SearchSettings,
    exact_search,
    held_out,
    mean_payoff,
    pack,
    take,
)
from sdgbias.methods.search.exact import ALPHA, BETA, LAMBDA, TAU, ascend, centre, climb
from sdgbias.methods.search.kernel import Packed
from sdgbias.methods.search.lines import Plateau, Steps, along, along_tau, around, best
from sdgbias.types import CadeParams, Task


def problem(seed: int, n: int, task: Task = Task.MCQ) -> tuple[Streams, np.ndarray]:
    """Biased views of n questions; some rows lack candidates, a view or everything."""
    rng = np.random.default_rng(seed)
    k = 3 if task is Task.MCQ else 10
    gold = rng.integers(k, size=n)
    prior, evidence = rng.normal(0, 1.5, k), np.eye(k)[gold] * 1.5
    full, ctx = (
        prior * 2 + evidence + rng.normal(size=(n, k)),
        prior * 2 + rng.normal(0, 0.3, (n, k)),
    )
    img, q = prior + evidence + rng.normal(size=(n, k)), np.tile(prior, (n, 1))
    present = np.ones((n, k), dtype=bool)
    if task is Task.MCQ:
        present[::7, 2] = gold[::7] == 2
        payoff = np.eye(3)[gold]
    else:
        payoff = -np.abs(np.arange(10) - gold[:, None]) - rng.random((n, 10))
    full[3::11] = np.nan
    return streams(full, ctx, img, q, present), payoff


def mean_of(s: Streams, payoff: np.ndarray, params: CadeParams) -> float:
    return float(payoff[np.arange(len(payoff)), decide(s, params).choice].mean())


@pytest.mark.parametrize("seed", range(15))
def test_never_worse_than_the_best_of_ten_thousand_draws(seed: int) -> None:
    task = Task.REGRESSION if seed % 5 == 4 else Task.MCQ
    s, payoff = problem(seed, 80, task)
    found = exact_search(s, payoff, task, settings=SearchSettings(seed=seed))
    low, high = np.array(RANGES[task]).T
    draws = np.random.default_rng(seed).uniform(low, high, (10_000, 4))
    drawn = mean_payoff(pack(s, payoff), draws).max()
    assert found.drawn == drawn
    assert found.value >= drawn - 1e-12
    assert found.value == pytest.approx(mean_of(s, payoff, found.params), abs=1e-12)
    assert found.value == pytest.approx(mean_of(s, payoff, found.peak), abs=1e-12)
    for x, (a, b), (left, right) in zip(
        vars(found.params).values(), RANGES[task], found.plateau, strict=True
    ):
        assert a <= left <= x <= right <= b


@pytest.mark.parametrize("task", list(Task))
@pytest.mark.parametrize("which", [ALPHA, LAMBDA, BETA, TAU])
def test_breakpoints_are_those_of_a_dense_grid(task: Task, which: int) -> None:
    for seed in range(6):
        s, payoff = problem(seed, 40, task)
        rows = pack(s, payoff)
        low, high = RANGES[task][which]
        point = np.random.default_rng(seed).uniform(*np.array(RANGES[task]).T)
        alpha, lambda_kl, beta, tau = point
        if which == TAU:
            steps = along_tau(rows, alpha, lambda_kl, beta, low, high)
        else:
            origin = {
                ALPHA: (0, 0, beta),
                LAMBDA: (alpha, 0, beta),
                BETA: (alpha, alpha * lambda_kl, 0),
            }[which]
            direction = {ALPHA: (1, lambda_kl, 0), LAMBDA: (0, alpha, 0), BETA: (0, 0, 1)}[which]
            steps = along(rows, np.array(origin, float), np.array(direction, float), low, high, tau)
        grid = np.random.default_rng(seed + 100).uniform(low, high, 3_000)
        draws = np.tile(point, (grid.size, 1))
        draws[:, which] = grid
        want = mean_payoff(pack(s, payoff), draws)
        at = np.searchsorted(steps.edges, grid, side="right") - 1
        assert steps.values[at] == pytest.approx(want, abs=1e-12)
        top = best(steps)
        assert top is not None
        assert top.value >= want.max() - 1e-12
        draws[0, which] = top.centre
        assert mean_payoff(pack(s, payoff), draws[:1])[0] == pytest.approx(top.value, abs=1e-12)


def two_lines(
    at_zero: list[float], minus_context: list[float], base: int = 0, confidence: float = 0.0
) -> Streams:
    """One row whose scores are ``at_zero`` - alpha x ``minus_context``, without a prior."""
    k = len(at_zero)
    return Streams(
        np.ones((1, k), bool),
        np.array([at_zero]),
        np.array([minus_context]),
        np.zeros((1, k)),
        np.zeros(1),
        np.array([base]),
        np.array([confidence]),
    )


def along_alpha(s: Streams, payoff: list[float]) -> Steps:
    return along(pack(s, np.array([payoff])), np.zeros(3), np.eye(3)[0], 0.0, 2.0, 0.9)


def test_one_row_by_hand() -> None:
    """Two candidates: s_A = -1 + 2 alpha, s_B = -0.5 + 0.5 alpha. B leads until 1.5 alpha = 0.5, so
    A, the gold one, from 1/3."""
    s = two_lines([-1.0, -0.5], [-2.0, -0.5], 1, 0.6)
    steps = along_alpha(s, [1.0, 0.0])
    assert steps.edges == pytest.approx([0.0, 1 / 3, 2.0])
    assert steps.values.tolist() == [0.0, 1.0]
    top = best(steps)
    assert top is not None
    assert (top.low, top.high, top.centre) == pytest.approx((1 / 3, 2.0, 7 / 6))
    rows = pack(s, np.array([[1.0, 0.0]]))
    gate = along_tau(rows, 1.0, 0.0, 0.0, 0.5, 0.9)  # the baseline B is kept up to tau = 0.6
    assert gate.edges.tolist() == [0.5, 0.6, 0.9]
    assert gate.values.tolist() == [0.0, 1.0]


def test_lines_that_coincide_go_to_the_lowest_candidate() -> None:
    """B and C coincide, B is paid."""
    steps = along_alpha(two_lines([-3.0, -1.0, -1.0], [-1.0] * 3), [0.0, 1.0, 5.0])
    assert (steps.edges.tolist(), steps.values.tolist()) == ([0.0, 2.0], [1.0])


def test_where_three_lines_meet_the_steepest_leads_on() -> None:
    top = best(along_alpha(two_lines([0.0, -1.0, -2.0], [0.0, -1.0, -2.0]), [0.0, 1.0, 5.0]))
    assert top is not None
    assert (top.value, top.low, top.high) == (5.0, 1.0, 2.0)


def test_equal_neighbours_are_one_plateau_and_thin_steps_none() -> None:
    steps = Steps(np.array([0.0, 1.0, 1.0, 3.0, 4.0, 6.0]), np.array([0.5, 0.9, 0.5, 0.2, 0.5]))
    top = best(steps)
    assert top is not None
    assert (top.value, top.low, top.high) == (0.5, 0.0, 3.0)  # 0.9 has no width
    meet = around(steps, 4.0)
    assert meet is not None
    assert (meet.value, meet.low, meet.high) == (0.5, 4.0, 6.0)
    assert around(steps, 6.0) == meet  # also at the end of the line
    assert best(Steps(np.array([1.0, 1.0]), np.array([0.3]))) is None


def test_a_step_is_thin_by_its_share_of_the_line() -> None:
    """The best value holds for two billionths of a line of length 1, far from zero."""
    edges = np.array([100.0, 100.5, 100.5 + 2e-9, 101.0])

    top = best(Steps(edges, np.array([0.2, 0.9, 0.5])))

    assert top is not None and top.value == 0.9


def test_views_that_agree_leave_whole_ranges_as_plateaus() -> None:
    """Identical views: scores are (1 - alpha_i - beta) log p, degenerate slopes; and a payoff that
    no choice changes."""
    z = np.random.default_rng(0).normal(size=(30, 3))
    s = streams(z, z, z, z)
    found = exact_search(s, np.ones((30, 3)), Task.MCQ, settings=SearchSettings(draws=50))
    assert found.value == found.baseline == 1.0
    assert found.plateau == RANGES[Task.MCQ]
    assert vars(found.params) == pytest.approx(
        {"alpha": 1.25, "lambda_kl": 2.5, "beta": 0.75, "tau": 0.82}
    )
    gold = np.eye(3)[z.argmax(axis=1)]
    assert (
        exact_search(s, gold, Task.MCQ, settings=SearchSettings(draws=50)).value == 1.0
    )  # alpha + beta < 1 is within the ranges


def test_undecidable_rows_are_left_out_and_nothing_else_is_an_error() -> None:
    s, payoff = problem(1, 60)
    empty = streams(*[np.full((4, 3), np.nan) for _ in range(4)], np.ones((4, 3), bool))
    both = Streams(*[np.concatenate([getattr(s, f), getattr(empty, f)]) for f in vars(s)])
    paid, few = np.concatenate([payoff, np.zeros((4, 3))]), SearchSettings(draws=200)

    found, alone = (exact_search(*of, Task.MCQ, settings=few) for of in ((both, paid), (s, payoff)))

    assert (found.params, found.value, found.n_val) == (alone.params, alone.value, 60)
    with pytest.raises(ValueError, match="validation row"):
        exact_search(take(s, np.array([], dtype=int)), payoff[:0], Task.MCQ)


def test_climbing_and_centring_never_go_down_and_stay_in_range() -> None:
    s, payoff = problem(3, 150)
    rows = pack(s, payoff)
    ranges = ((0.5, 2.0), (1.0, 1.0), (0.0, 1.5), (0.65, 0.99))
    for seed in range(8):
        start = np.random.default_rng(seed).uniform(0, 2, 4)
        point, value = ascend(rows, start, ranges, np.random.default_rng(seed))
        first = np.clip(start, *np.array(ranges).T)
        assert value >= mean_payoff(rows, first[None])[0]
        middle, plateau = centre(rows, point, ranges)
        assert mean_payoff(rows, middle[None])[0] == pytest.approx(value, abs=1e-12)
        assert middle[LAMBDA] == 1.0
        for x, (low, high), (left, right) in zip(middle, ranges, plateau, strict=True):
            assert low <= left <= x <= right <= high
        for edge in (0, 1):  # just inside each edge the value still holds
            for which in (ALPHA, BETA, TAU):
                near = middle.copy()
                near[which] += 0.999 * (plateau[which][edge] - middle[which])
                assert mean_payoff(rows, near[None])[0] >= value - 1e-12


def test_oblique_lines_reach_to_the_edge_of_the_ranges_and_their_best_point_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s, payoff = problem(3, 150)
    rows, ranges = pack(s, payoff), ((0.5, 2.0), (0.5, 5.0), (0.25, 1.5), (0.65, 0.99))
    (a0, a1), (l0, l1), (b0, b1), _ = ranges
    lines, tried = [], []

    def record_line(rows: object, origin: np.ndarray, direction: np.ndarray, *more: float) -> Steps:
        steps = along(rows, origin, direction, *more)  # type: ignore[arg-type]
        if np.count_nonzero(direction) == 3:
            lines.append((origin, direction, *more, best(steps)))
        return steps

    def record_point(rows: object, point: np.ndarray) -> float:
        tried.append(point)
        return float(mean_payoff(rows, point[None])[0])  # type: ignore[arg-type]

    monkeypatch.setattr("sdgbias.methods.search.exact.along", record_line)
    monkeypatch.setattr("sdgbias.methods.search.exact.one_payoff", record_point)

    ascend(rows, [1.0, 1.0, 0.5, 0.8], ranges, np.random.default_rng(0))

    assert len(lines) > 3
    for origin, direction, low, high, tau, top in lines:
        assert low < 0 < high
        for end in (low, high):
            alpha, gamma, beta = origin + end * direction
            room = (alpha - a0, a1 - alpha, beta - b0, b1 - beta)
            room += (gamma - l0 * alpha, l1 * alpha - gamma)
            assert min(room) == pytest.approx(0.0, abs=1e-9), "inside all bounds, and on one"
        assert top is not None
        alpha, gamma, beta = origin + top.centre * direction
        point = pytest.approx([alpha, gamma / alpha, beta, tau])
        assert any(point == list(one) for one in tried), "the best point of the line is tried"


def test_a_line_is_believed_only_when_the_scores_confirm_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s, payoff = problem(3, 150)
    rows = pack(s, payoff)
    start = np.array([0.8, 0.5, 0.5, 0.99])
    value = mean_payoff(rows, start[None])[0]
    worst = mean_payoff(rows, np.array([[2.0, 5.0, 1.5, 0.99]]))[0]
    assert worst < value
    monkeypatch.setattr(
        "sdgbias.methods.search.exact.best",
        lambda steps: Plateau(9.0, steps.edges[-1], steps.edges[-1]),
    )
    point, got = ascend(rows, start, RANGES[Task.MCQ], np.random.default_rng(0))
    assert got == mean_payoff(rows, point[None])[0] >= value


def test_held_out_rows_never_tune_their_own_setting() -> None:
    """Two places, two folds: each is judged by the other's setting, so turning its own payoffs
    round turns the result round."""
    s, payoff = problem(4, 120)
    place = np.repeat(["here", "there"], 60)
    before = held_out(s, payoff, Task.MCQ, place, settings=SearchSettings(draws=300))
    turned = payoff.copy()
    turned[:60] = 1 - turned[:60]
    after = held_out(s, turned, Task.MCQ, place, settings=SearchSettings(draws=300))
    assert np.array_equal(after[:60], 1 - before[:60])
    alone = held_out(s, payoff, Task.MCQ, np.zeros(120), settings=SearchSettings(draws=300))
    assert np.isnan(alone).all(), "one place"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Packed, list[np.ndarray]]]:
    """The rows and the starts of each climb."""
    climbs = []

    def record(rows: Packed, starts: list[np.ndarray], *more: object) -> tuple[np.ndarray, float]:
        climbs.append((rows, starts))
        return climb(rows, starts, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("sdgbias.methods.search.exact.climb", record)
    return climbs


def drawn_settings(draws: int) -> np.ndarray:
    low, high = np.array(RANGES[Task.MCQ]).T
    return np.random.default_rng(0).uniform(low, high, (draws, 4))


def test_a_search_starts_from_the_three_best_draws_the_baseline_and_the_middle(
    begun: list[tuple[Packed, list[np.ndarray]]],
) -> None:
    s, payoff = problem(4, 120)

    exact_search(s, payoff, Task.MCQ, SearchSettings(300))

    [(rows, starts)] = begun
    draws = drawn_settings(300)
    order = np.argsort(-mean_payoff(rows, draws), kind="stable")
    others = [list(vars(BASELINE).values()), np.mean(RANGES[Task.MCQ], axis=1)]
    assert np.array_equal(starts, [*draws[order[:3]], *others])


def test_a_fold_starts_from_the_draw_that_is_best_on_the_rows_of_all_others(
    begun: list[tuple[Packed, list[np.ndarray]]],
) -> None:
    """Folds of 80, 30 and 10 rows: each row counts once, not each fold."""
    s, payoff = problem(2, 120)

    held_out(s, payoff, Task.MCQ, np.repeat(range(3), [80, 30, 10]), SearchSettings(300), folds=3)

    assert sorted(rows.n for rows, _ in begun) == [40, 90, 110]
    for rows, [start] in begun:
        most = mean_payoff(rows, drawn_settings(300)).max()
        assert mean_payoff(rows, start[None])[0] == pytest.approx(most)


def test_a_setting_where_three_lines_meet_has_no_plateau_of_its_own_value() -> None:
    """Scores 0, 1 - alpha and alpha - 1: A, the paid one, leads at alpha = 1 alone."""
    s = two_lines([0.0, 1.0, -1.0], [0.0, 1.0, -1.0])
    ranges = RANGES[Task.MCQ]

    point, plateau = centre(pack(s, np.eye(3)[:1]), np.array([1.0, 0.0, 0.0, 0.9]), ranges)

    assert (point[ALPHA], plateau[ALPHA]) == (1.0, (1.0, 1.0))
    assert (plateau[BETA], plateau[TAU]) == (ranges[BETA], ranges[TAU])


def test_pure_noise_is_seen_as_overtuning() -> None:
    """Gold drawn at random: nothing can be learnt, so what tuning gains on val is optimism."""
    s, _ = problem(5, 240)
    payoff = np.eye(3)[np.random.default_rng(0).integers(3, size=240)]
    found = exact_search(s, payoff, Task.MCQ, clusters=np.arange(240) // 2, folds=5)
    assert found.optimism == pytest.approx(found.value - found.held_out)
    assert found.optimism > 0.03


def test_of_two_plateaus_as_high_the_wider_counts_and_of_equal_ones_the_lower() -> None:
    top = best(Steps(np.array([0.0, 1.0, 2.0, 5.0]), np.array([0.7, 0.2, 0.7])))
    assert top == Plateau(0.7, 2.0, 5.0)
    assert best(Steps(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.7, 0.2, 0.7]))) == Plateau(
        0.7, 0.0, 1.0
    )
