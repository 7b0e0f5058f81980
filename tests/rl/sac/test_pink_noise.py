"""The noise by which SAC explores."""

import pytest
import torch

from mjfleet.rl.sac.pink_noise import PinkNoise


def correlations(noise: PinkNoise, lags: list[int]) -> list[float]:
    """Return the products of values so many steps apart, in the mean."""
    values = torch.stack([noise.draw() for _ in range(max(lags) + 200)])
    return [float((values[lag:] * values[: len(values) - lag]).mean()) for lag in lags]


def test_its_deviation_is_1_from_the_first_step_on_and_it_forgets_slowly() -> None:
    torch.manual_seed(1)
    noise = PinkNoise(4096, 2, 256, "cpu")
    first = noise.draw()
    assert first.shape == (4096, 2)
    assert float(first.std()) == pytest.approx(1.0, abs=0.03)
    found = correlations(noise, [0, 1, 4, 64])
    kept = [0.0, 0.75, 1 - 1 / 16, 1 - 1 / 64, 1 - 1 / 256]
    expected = [1.0, *(sum(a**lag for a in kept) / 5 for lag in (1, 4, 64))]
    assert found == pytest.approx(expected, abs=0.03)


def test_a_memory_of_one_step_is_white_noise() -> None:
    torch.manual_seed(1)
    assert correlations(PinkNoise(4096, 1, 1, "cpu"), [0, 1, 4]) == pytest.approx(
        [1, 0, 0], abs=0.02
    )
