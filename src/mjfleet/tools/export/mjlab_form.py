"""The ONNX form of mjlab's policies that follow a clip, which robots' runtimes read. Imports torch.

See `tasks/tracking/rl/runner.py` of mjlab 1.6 (github.com/mujocolab/mjlab).
"""

from collections.abc import Mapping
from typing import Any

import torch

from mjfleet.errors import UserError

OBSERVATION, TIME_STEP = "obs", "time_step"
"""The graph's inputs, `(1, size)` and `(1, 1)`, float32."""
FRAME = "joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w"
"""Its outputs after the action: `(1, joints)` and `(1, bodies, 3)` or, of quaternions, 4."""
OBSERVATION_NAMES = {
    "reference_positions": "command",
    "reference_velocities": "",  # The second half of `command`.
    "anchor_position": "motion_anchor_pos_b",
    "anchor_rotation": "motion_anchor_ori_b",
    "velocity": "base_lin_vel",
    "gyro": "base_ang_vel",
    "joint_positions": "joint_pos",
    "joint_velocities": "joint_vel",
    "last_actions": "actions",
}
"""mjlab's names of the parts of an observation."""


class FollowingGraph(torch.nn.Module):
    """A policy's graph that also returns a clip's frame, the last one after its end."""

    input_names, output_names = [OBSERVATION, TIME_STEP], ["actions", *FRAME]

    def __init__(self, policy: Any, frames: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.policy, self.last = policy, len(frames[FRAME[0]]) - 1
        for name in FRAME:
            self.register_buffer(name, frames[name].cpu())

    def forward(self, obs: torch.Tensor, time_step: torch.Tensor) -> tuple[torch.Tensor, ...]:
        step = time_step.long().squeeze(-1).clamp(0, self.last)
        return self.policy(obs), *(getattr(self, name)[step] for name in FRAME)

    def get_dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        return *self.policy.get_dummy_inputs(), torch.zeros(1, 1)


def frames_of_clip(known: Mapping[str, Any], arrays: Mapping[str, torch.Tensor]) -> Any:
    """Return the frames of the one clip that a policy follows, by FRAME.

    `known` is the content of policy.json, `arrays` are those of `deployment_arrays()`. UserError if
    there is not one clip with all of these.
    """
    clips = [clip["name"] for clip in known.get("clips", ())]
    if len(clips) != 1:
        several = f"choose one of {', '.join(clips)} by --clip" if clips else "the task has no clip"
        raise UserError(f"--format mjlab is for a policy with one clip: {several}.")
    frames = {name: arrays.get(f"{clips[0]}/{name}") for name in FRAME}
    if lacking := [name for name, values in frames.items() if values is None]:
        raise UserError(f"--format mjlab: deployment_arrays() has no {clips[0]}/{lacking[0]}.")
    return frames


def properties(known: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of policy.json that mjlab's runtimes read, by mjlab's names."""
    parts = [part["name"] for group in known["observations"] for part in group.get("parts", ())]
    terms = [term for name in parts if (term := OBSERVATION_NAMES.get(name, name))]
    lists = {
        "joint_names": known["joint_names"],
        "joint_stiffness": known["kp"],
        "joint_damping": known["kv"],
        "default_joint_pos": known["default_pose"],
        "command_names": ["motion"],
        "observation_names": terms,
        "observation_terms_scale": [1.0] * len(terms),
        "observation_terms_history_length": [0] * len(terms),
        "action_scale": known["action_scale"],
        "body_names": known["bodies"],
    }
    texts = {name: ",".join(map(str, values)) for name, values in lists.items()}
    return texts | {"anchor_body_name": known["anchor"], "run_path": "mjfleet"}
