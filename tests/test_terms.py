"""Each term against its formula, with numbers that a reader can follow."""

import math

import mujoco
import numpy as np
import pytest
import torch

from mjfleet import terms


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers])


FEET = torch.tensor([[[3.0, 4.0, 9.0], [6.0, 8.0, 0.0]]])
"""Vectors of two feet: horizontally 5 and 10 long."""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (terms.tracking(row(0.3, 0.4), 0.5), math.exp(-1)),
        (terms.tracking(row(0.0, 0.0), 0.5), 1),
        (terms.upright(row(0.6, 0.0, 0.8), 0.6), math.exp(-1)),
        (terms.squares(row(3.0, -4.0)), 25),
        (terms.height(torch.tensor([0.5]), 0.3), 0.04),
        (terms.action_rate(row(1.0, 2.0), row(1.0, 0.0)), 4),
        (terms.action_acceleration(row(3.0), row(1.0), row(0.0)), 1),
        # The middle 0.9 of -1 to 3 is -0.8 to 2.8.
        (terms.joint_limits(row(3.0, 1.0), row(-1.0, -1.0)[0], row(3.0, 3.0)[0]), 0.2),
        (terms.power(row(2.0, -3.0), row(-1.0, -2.0)), 8),
        (terms.pose(row(1.0, 2.0), row(0.0, 0.0)[0], row(1.0, 0.5)[0]), 3),
        (terms.slip(FEET, torch.tensor([[True, False]])), 25),
        (terms.air_time(row(0.4, 0.05, 0.9), 0.1, 0.3), 0.6),
        (terms.clearance(row(0.1, 0.3), FEET, 0.2), 1.5),
        (terms.stumbling(FEET), 1),
        (terms.alive(torch.tensor([True])), 0),
        (terms.is_tilted(row(0.0, 0.6, 0.8), 0.6), 1),
        (terms.is_tilted(row(0.0, 0.6, 0.8), 0.7), 0),
        (terms.is_low(torch.tensor([0.2]), 0.3), 1),
        (terms.touches(row(0.0, 2.0)), 1),
        (terms.touches(row(0.0, 0.0)), 0),
    ],
)
def test_a_term_is_its_formula(found: torch.Tensor, expected: float) -> None:
    assert found.shape == (1,)
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_power_of_motors_and_joints_of_different_number_is_refused() -> None:
    with pytest.raises(ValueError, match="power: 3 speeds for 2 forces"):
        terms.power(row(1.0, 2.0), row(1.0, 2.0, 3.0))


def test_vectors_turn_into_a_bodys_frame_as_mujoco_turns_them() -> None:
    rng = np.random.default_rng(0)
    quaternions = rng.normal(size=(50, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    vectors = rng.normal(size=(50, 3))
    for vector, found in (
        (vectors, terms.in_frame(torch.tensor(quaternions), torch.tensor(vectors))),
        (np.tile((0, 0, -1.0), (50, 1)), terms.projected_gravity(torch.tensor(quaternions))),
    ):
        expected = np.zeros((50, 3))
        for into, quaternion, v in zip(expected, quaternions, vector, strict=True):
            inverse = np.zeros(4)
            mujoco.mju_negQuat(inverse, quaternion)
            mujoco.mju_rotVecQuat(into, v, inverse)
        assert found.numpy() == pytest.approx(expected, abs=1e-12)


def test_a_vector_of_a_task_may_be_less_precise_than_the_simulation() -> None:
    quaternion = torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    assert terms.in_frame(quaternion, torch.ones(1, 3)).tolist() == [[-1.0, -1.0, 1.0]]


def test_a_phase_begins_anew_after_each_period() -> None:
    found = terms.phase(torch.tensor([0, 10, 40]), step_dt=0.02, period=0.8)
    assert found.numpy() == pytest.approx(np.array([[0, 1], [1, 0], [0, 1]]), abs=1e-6)
