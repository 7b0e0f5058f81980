"""Signs that nothing can be learned in a task: for training's first rollouts and for `check-task`.

Functions of what a rollout holds, in tensors `(steps, num_envs, ...)` on any device. Each returns
a sentence that begins with what is wrong and goes on with what to do, or None; it waits for the
device once or twice.
"""

import math

import torch

MOST_LAGS = 12  # Steps within which an action must show an effect, a late motor's too.
SURE = 6.0  # Standard deviations by which a correlation by chance practically never differs from 0.
DEAD_ACTIONS = "the actions change nothing"
EARLY_ENDS = (
    "so that nothing can be learned; let it be true only for what has failed, and start in "
    "reset_worlds() from states that have not"
)
FEW_SAMPLES = 1000  # With fewer, correlations by chance are too large.


def constant_columns(values: torch.Tensor) -> torch.Tensor:
    """Return which columns of `(steps, num_envs, size)` change by rounding only, `(size,)`."""
    low, high = values.amin(dim=(0, 1)), values.amax(dim=(0, 1))
    return high - low <= 1e-7 + 1e-6 * torch.maximum(high.abs(), low.abs())


def ends_at_once(dones: torch.Tensor) -> str | None:
    """Find that most environments end in each of their steps. `dones`: `(steps, num_envs)`, bool.

    Where the first steps continue earlier episodes, as after `start_at_random_times`, that makes
    no difference: an environment that always fails does so in each step.
    """
    share = float(dones.float().mean())
    if share <= 0.5:
        return None
    return f"true in {share:.0%} of all steps, {EARLY_ENDS}"


def constant_observation(values: torch.Tensor) -> str | None:
    """Find that a group of observations `(steps, num_envs, size)` never changes."""
    if not bool(constant_columns(values).all()):
        return None
    return (
        "the same in all environments and steps, so that the policy sees nothing; compute it from "
        "the state in each call of observe()"
    )


def constant_reward(rewards: torch.Tensor, *, may_fail: bool) -> str | None:
    """Find that rewards `(steps, num_envs)` never change.

    Args:
        rewards: of a term, or of all terms together, without the values of time-outs.
        may_fail: whether the task overrides `terminated`. A constant above zero then pays for each
            step without a failure, which can be learned from.
    """
    value = float(rewards[0, 0])
    if (may_fail and value > 0) or not bool(constant_columns(rewards.unsqueeze(2)).all()):
        return None
    return (
        f"{value + 0:g} in all environments and steps, so that nothing is learned from it; make it "
        "follow the state, or leave it out"
    )


def idle_actions(actions: torch.Tensor, changes: torch.Tensor) -> str | None:
    """Find that random actions change nothing, as far as correlations show.

    An action's value and its square are compared with the changes of the state in this step and in
    each of the next ones, and with the changes' squares. Of few samples, nothing is found.

    Args:
        actions: `(steps, num_envs, number of actions)`.
        changes: of the velocities by the physics of each step, `(steps, num_envs, nv)`.
    """
    largest = torch.zeros((), dtype=torch.float64, device=actions.device)
    for lag in range(min(MOST_LAGS, len(actions) - 1)):
        causes, effects = actions[: len(actions) - lag], changes[lag:]
        samples = causes.shape[0] * causes.shape[1]
        if samples < FEW_SAMPLES:
            break
        correlation = _standardised(causes).T @ _standardised(effects) / samples
        # Compared with what chance allows for so many samples.
        largest = torch.maximum(largest, correlation.abs().max() * math.sqrt(samples))
    if actions.shape[0] * actions.shape[1] < FEW_SAMPLES or float(largest) > SURE:
        return None
    return (
        f"{DEAD_ACTIONS}: no velocity follows them; write sim.ctrl[:] from the action in apply(), "
        "and look at the gains and gear of the actuators in the model, and at their joints"
    )


def _standardised(values: torch.Tensor) -> torch.Tensor:
    """Return values and their squares as columns with mean 0 and deviation 1, or all zeros."""
    flat = values.flatten(0, 1).double()
    both = torch.cat((flat, flat.square()), dim=1)
    centred = both - both.mean(dim=0)
    return centred / centred.square().mean(dim=0).sqrt().clamp(min=1e-12)
