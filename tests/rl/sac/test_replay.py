"""The samples of a replay are those that a plain loop over the steps would find."""

import numpy as np
import pytest
import torch

from mjfleet.rl.sac.replay import FAILED, SPOILT, TIMED_OUT, Replay

ENVS, ACTIONS, GAMMA = 5, 2, 0.9


def observed(replay: Replay, places: torch.Tensor) -> torch.Tensor:
    room = replay.room(len(places))
    replay.observed(places, room)
    return room["actor"]


class History:
    """All steps that were ever added, as arrays."""

    def __init__(self, replay: Replay, steps: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.seen = draw.normal(size=(steps, ENVS, 3)).astype(np.float32)
        self.actions = draw.normal(size=(steps, ENVS, ACTIONS)).astype(np.float32)
        self.rewards = draw.normal(size=(steps, ENVS)).astype(np.float32)
        self.ends = draw.choice([0, 0, 0, 0, FAILED, TIMED_OUT, SPOILT], size=(steps, ENVS))
        for step in range(steps):
            end = torch.from_numpy(self.ends[step])
            rows = (torch.from_numpy(x[step]) for x in (self.seen, self.actions, self.rewards))
            seen, actions, rewards = rows
            replay.add(
                {"actor": seen}, actions, rewards, end == FAILED, end == TIMED_OUT, end == SPOILT
            )

    def window(self, step: int, env: int, n: int) -> tuple[float, float, float, np.ndarray]:
        """Return the sum of rewards, the discount, the weight and the last observation."""
        total, discount = 0.0, 1.0
        for k in range(n):
            end = self.ends[step + k, env]
            if end in (TIMED_OUT, SPOILT):
                return total, discount, float(k > 0), self.seen[step + k, env]
            total += discount * self.rewards[step + k, env]
            discount *= GAMMA
            if end == FAILED:
                return total, 0.0, 1.0, self.seen[step + k, env]
        return total, discount, 1.0, self.seen[step + n, env]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", [11, 40])
def test_windows_are_those_of_a_loop_also_where_the_ring_has_wrapped(n: int, steps: int) -> None:
    length = 16
    replay = Replay(length, {"actor": torch.zeros(ENVS, 3)}, ACTIONS)
    history = History(replay, steps, seed=steps)
    first = max(0, steps - length)
    assert (replay.count, replay.next) == (min(steps, length), steps % length)
    for step in range(first, steps - n):
        rows = torch.full((ENVS,), step)
        samples = replay.windows(rows, torch.arange(ENVS), n, GAMMA)
        assert np.array_equal(observed(replay, samples.before), history.seen[step])
        assert np.array_equal(samples.actions.numpy(), history.actions[step])
        for env in range(ENVS):
            total, discount, weight, last = history.window(step, env, n)
            assert samples.weights[env] == weight
            if weight:
                assert samples.rewards[env].item() == pytest.approx(total, abs=1e-6)
                assert samples.discounts[env].item() == pytest.approx(discount, abs=1e-6)
                if discount:
                    assert np.array_equal(observed(replay, samples.after)[env], last)


def test_samples_are_of_all_steps_but_the_newest_ones() -> None:
    replay = Replay(16, {"actor": torch.zeros(ENVS, 1)}, 1)
    never = torch.zeros(ENVS, dtype=torch.bool)
    for step in range(21):
        seen = torch.full((ENVS, 1), float(step)) + torch.arange(ENVS).unsqueeze(1) / 10
        replay.add({"actor": seen}, seen, seen[:, 0], never, never, never)
    torch.manual_seed(0)
    samples = replay.sample(4000, 2, GAMMA)
    first, following = (observed(replay, places) for places in samples[:2])
    assert {*first.long().flatten().tolist()} == {*range(5, 19)}
    assert torch.allclose(following, first + 2.0)
    shares = torch.bincount((first.frac() * 10).round().long().flatten()) / 4000
    assert torch.allclose(shares, torch.full((ENVS,), 1 / ENVS), atol=0.03)


def filled(length: int, steps: int) -> Replay:
    """Return a replay whose rewards are the numbers of the steps."""
    replay = Replay(length, {"actor": torch.zeros(ENVS, 1)}, 1)
    never = torch.zeros(ENVS, dtype=torch.bool)
    for step in range(steps):
        seen = torch.full((ENVS, 1), float(step))
        replay.add({"actor": seen}, seen, seen[:, 0], never, never, never)
    return replay


def test_the_newest_rows_come_in_their_order() -> None:
    replay = filled(6, 8)
    rows = torch.cat([replay.rewards[part] for part in replay.newest(4)])
    assert rows[:, 0].tolist() == [4.0, 5.0, 6.0, 7.0]


def test_no_part_of_the_newest_rows_is_empty_where_the_ring_begins_again() -> None:
    (part,) = filled(6, 12).newest(2)
    assert (part.start, part.stop) == (4, 6)


@pytest.mark.parametrize("length", [4, 6, 9])
@pytest.mark.parametrize("steps", [3, 6, 8])
def test_a_ring_of_another_length_takes_the_newest_steps_in_their_order(
    length: int, steps: int
) -> None:
    old, new = filled(6, steps), filled(length, 0)
    new.load_state(old.state())
    kept = min(steps, 6, length)
    newest = torch.cat([new.rewards[part] for part in new.newest(kept)])[:, 0]
    assert newest.tolist() == [float(step) for step in range(steps - kept, steps)]
    assert (new.count, new.next < length) == (kept, True)
    if length == 6:
        assert (new.next, new.rewards.tolist()) == (old.next, old.rewards.tolist())
    with pytest.raises(ValueError, match="actions has another shape"):
        Replay(length, {"actor": torch.zeros(ENVS, 1)}, 2).load_state(old.state())
