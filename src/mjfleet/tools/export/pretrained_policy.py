"""Makes a pretrained policy's file: the actor, its normaliser, and what it did in `play`."""

from collections.abc import Mapping
from typing import Any

import torch

from mjfleet.rl.checkpoint_files import pack_checkpoint
from mjfleet.rl.runner import Runner
from mjfleet.runs.pretrained import PLAYED
from mjfleet.tools.play.policy_episodes import Player, evaluate


@torch.inference_mode()
def make_pretrained(runner: Runner, known: Mapping[str, Any]) -> tuple[bytes, str]:
    """Play an episode in each environment; return the file's content and the episodes' table.

    `known` is what the file is to say of itself.
    """
    policy = runner.get_inference_policy()
    sums, _ = evaluate(Player(runner.env, policy, forget=policy.reset), 1, None, 0)
    state = {
        "actor_state_dict": runner.alg.save()["actor_state_dict"],
        "critic_state_dict": {},
        "optimizer_state_dict": {"state": {}, "param_groups": [{"lr": 0.0}]},
        "iter": runner.current_learning_iteration,
    }
    return pack_checkpoint(state, {**known, PLAYED: sums.table}), sums.table
