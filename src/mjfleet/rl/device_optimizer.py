"""Lets an optimiser step without waiting for a GPU, in a form that a CUDA graph can hold.

Runs in a worker. The learning rate is one tensor on the device, which a schedule fills in place.
"""

from typing import Any

import torch


def prepare(optimizer: torch.optim.Optimizer, rate: torch.Tensor) -> None:
    """Have an optimiser step all parameters in one launch, by `rate` `()` on their device.

    To be called again when the optimiser's state was loaded.
    """
    for group in optimizer.param_groups:
        group |= {"fused": True, "lr": rate}
        if "capturable" in group:
            group["capturable"] = rate.is_cuda
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = state["step"].to(rate.device, torch.float32)


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return what a step changes besides the parameters."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in values if isinstance(value, torch.Tensor)]


def portable(state_dict: dict[str, Any], rate: float) -> dict[str, Any]:
    """Return an optimiser's state in the form that rsl_rl's own PPO loads."""
    own = {"lr": rate, "fused": None, "capturable": False}
    groups = [
        group | {name: value for name, value in own.items() if name in group}
        for group in state_dict["param_groups"]
    ]
    return state_dict | {"param_groups": groups}
