"""Finds fields of the agent that have no effect with the values of others, and refuses typed ones.

Defaults and files may set them: a task's configuration is for every algorithm.
"""

import re
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from mjfleet.config.agent_config import AgentConfig
from mjfleet.config.algorithm_config import PPOConfig
from mjfleet.config.train_config import field_kinds
from mjfleet.config.validation import Rule, is_class_path
from mjfleet.errors import UserError


class Unused(NamedTuple):
    """A field without effect."""

    name: str
    decider: str
    """The field that decides it."""
    why: str
    """A message for the user, which says what value the decider needs."""


def _one_of(*names: str) -> Rule:
    """Accept these names, and classes of the user's, which may read any field."""
    return Rule(lambda v: v in names or is_class_path(v), " or ".join(names))


PPO, GRPO, DISTILLATION = (_one_of(name) for name in ("ppo", "grpo", "distillation"))
BOTH = _one_of("ppo", "grpo")
VALUES = _one_of("ppo", "sac")
NOT_SAC = _one_of("ppo", "grpo", "distillation")
RNN, CNN, GAUSSIAN = (_one_of(name) for name in ("RNNModel", "CNNModel", "GaussianDistribution"))
TRUE, FALSE = Rule(bool, "True"), Rule(lambda v: not v, "False")
IS_SET = Rule(lambda v: v is not None, "a value from the task's configuration or a file")
WANDB = Rule(lambda v: "wandb" in v, "wandb, alone or with tensorboard")
NEEDS = (
    ("algorithm.group_size", "algorithm.name", GRPO),
    ("algorithm.gradient_length", "algorithm.name", DISTILLATION),
    ("algorithm.loss_type", "algorithm.name", DISTILLATION),
    ("algorithm.lam", "algorithm.name", PPO),
    ("algorithm.value_loss_coef", "algorithm.name", PPO),
    ("algorithm.use_clipped_value_loss", "algorithm.name", PPO),
    ("algorithm.share_cnn_encoders", "algorithm.name", PPO),
    ("algorithm.(backprop|learning_threads)", "algorithm.name", BOTH),
    ("critic.(?!cnn_cfg)", "algorithm.name", PPO),
    ("critic.cnn_cfg", "algorithm.name", VALUES),
    ("actor.(?!cnn_cfg)", "algorithm.name", NOT_SAC),
    ("obs_groups.critic", "algorithm.name", VALUES),
    ("algorithm.clip_param", "algorithm.name", BOTH),
    ("algorithm.entropy_coef", "algorithm.name", BOTH),
    ("algorithm.gamma", "algorithm.name", BOTH),
    ("algorithm.normalize_advantage_per_mini_batch", "algorithm.name", BOTH),
    ("algorithm.num_mini_batches", "algorithm.name", BOTH),
    ("algorithm.schedule", "algorithm.name", BOTH),
    ("algorithm.desired_kl", "algorithm.name", BOTH),
    ("algorithm.desired_kl", "algorithm.schedule", _one_of("adaptive")),
    ("algorithm.symmetry_cfg.mirror_loss_coeff", "algorithm.symmetry_cfg.use_mirror_loss", TRUE),
    ("actor.distribution.learn_std", "algorithm.name", BOTH),
    ("actor.distribution.learn_std", "actor.distribution.class_name", GAUSSIAN),
    ("actor.rnn_", "actor.class_name", RNN),
    ("critic.rnn_", "critic.class_name", RNN),
    ("actor.cnn_cfg.", "actor.class_name", CNN),
    ("critic.cnn_cfg.", "algorithm.share_cnn_encoders", FALSE),
    ("critic.cnn_cfg.", "critic.class_name", CNN),
    ("obs_groups.rnd_state", "algorithm.name", NOT_SAC),
    ("obs_groups.rnd_state", "algorithm.rnd_cfg", IS_SET),
    ("torch_compile_mode", "algorithm.name", NOT_SAC),
    ("wandb.", "logger", WANDB),
)
"""A pattern of a name's beginning; the field that decides about it; values with which it counts."""
CLASSES = {
    "algorithm.": "algorithm.name", "actor.": "actor.class_name", "critic.": "critic.class_name",
}  # fmt: skip
"""The field that names the class which reads fields of a task's own, by the beginning of those."""
OWN_CLASS = Rule(is_class_path, "the `module:Class` that reads it")


def unused_fields(agent: AgentConfig, names: Iterable[str]) -> Iterator[Unused]:
    """Yield the fields that have no effect in a configuration, of those with these dotted names."""
    is_ppo, known = isinstance(agent.algorithm, PPOConfig), vars(agent.algorithm)
    for name in sorted(name for name in names if name.startswith("agent.")):
        below = name.removeprefix("agent.")
        needs = [
            (decider, rule)
            for start, decider, rule in NEEDS
            if re.match(start, below)
            # Other algorithms lack fields of PPO's.
            and (not decider.startswith("algorithm.") or decider.split(".")[1] in known)
        ]
        if name not in field_kinds():
            needs += [(own, OWN_CLASS) for start, own in CLASSES.items() if below.startswith(start)]
        if not is_ppo and below.startswith("algorithm."):  # They are the chosen class's own.
            needs = []
        for decider, rule in needs:
            value = attrgetter(decider)(agent)
            if not rule.holds(value):
                flag, other = (f"--{n}".replace("_", "-") for n in (name, f"agent.{decider}"))
                shown = " ".join(value) if isinstance(value, tuple) else value
                why = f"{flag} has no effect with {other} {shown}; it needs {rule.allowed}."
                yield Unused(name, f"agent.{decider}", why)
                break


def refuse_unused(agent: AgentConfig, typed: Iterable[str]) -> None:
    """Raise UserError if a field that the user has typed has no effect."""
    for field in unused_fields(agent, typed):
        raise UserError(field.why)
