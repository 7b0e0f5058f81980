"""Reads the values that a sweep tries, checked by the task's configuration. Runs in the launcher.

`agent.algorithm.learning-rate=1e-4..1e-2:log` is a range, `agent.algorithm.gamma=0.9,0.95` a list.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from mjfleet.config import TrainConfig, by_dotted_name, from_dict, to_dict
from mjfleet.config.dict_conversion import nested
from mjfleet.config.train_config import decides_learning
from mjfleet.config.unused_fields import unused_fields
from mjfleet.errors import UserError
from mjfleet.utils.console import in_a_line

RANGE = re.compile(r"([^,\s]+?)\.\.([^,:\s]+)(?::(\S+))?")
FORMS = "a range such as `1e-4..1e-2:log` or `0..1:0.1`, or a list such as `1,2,4`"
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]
"""What is tried, by dotted name: agent.algorithm.learning_rate. A value of a field that is a list
is written as JSON, since Optuna has only scalars."""


def read_space(tried: Sequence[str], config: TrainConfig) -> tuple[Space, dict[str, str]]:
    """Return the values that texts `name=values` try, also as they are typed.

    UserError if a field is unknown, cannot be tried, does not allow some of the values, or has no
    effect.
    """
    if not tried:
        raise UserError("nothing is to vary: give --try NAME=VALUES.")
    space, typed = Space(), dict[str, str]()
    for item in tried:
        name, _, text = item.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        try:
            if not decides_learning(name):
                raise UserError(f"{name} does not decide what is learned.")
            if name in space:
                raise UserError(f"{name} is there twice: put all its values into one list.")
            space[name], typed[name] = _distribution(name, text.strip(), config), text
        except (UserError, ValueError) as error:
            raise UserError(f"--try {item}: {in_a_line(error)}") from None
    for field in unused_fields(config.agent, space):
        if field.decider not in space:
            raise UserError(f"--try {field.name}={typed[field.name]}: {field.why}")
    return space, typed


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with a trial's values; UserError if they are not allowed."""
    given = {name: json.loads(value) if isinstance(value, str) and value[:1] == "[" else value
             for name, value in values.items()}  # fmt: skip
    return from_dict(config, nested(given))


def defaults_in(space: Space, config: TrainConfig) -> dict[str, Any]:
    """Return the configuration's own values, or {} if some are not in the space."""
    values = {name: _value_of(config, name) for name in space}
    try:
        create_trial(state=TrialState.RUNNING, params=values, distributions={**space})
    except (ValueError, TypeError):
        return {}
    return values


def _value_of(config: TrainConfig, name: str) -> Any:
    value = by_dotted_name(to_dict(config))[name]
    return json.dumps(value) if isinstance(value, list) else value


def _distribution(name: str, text: str, config: TrainConfig) -> Distribution:
    """Return the distribution that a text describes; UserError or ValueError if it is none."""

    def as_field(value: Any) -> Any:
        return _value_of(with_values(config, {name: value}), name)

    if found := RANGE.fullmatch(text):
        *ends, how = found.groups()
        low, high = (as_field(int(end) if end.is_integer() else end) for end in map(float, ends))
        is_log, step = how == "log", None if how in (None, "log") else _step(how)
        if type(low) not in (int, float):
            raise UserError("the field is no number; give a list of values, such as a,b.")
        if step and (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step)):
            raise UserError(f"steps of {how} do not lead from {low} to {high}.")
        if isinstance(low, float):
            return FloatDistribution(low, high, log=is_log, step=step)
        if step and not step.is_integer():
            raise UserError("the field has whole numbers, so its step must be one, too.")
        return IntDistribution(low, high, log=is_log, step=int(step or 1))
    try:
        values = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):
        values = []
    if not values:
        raise UserError(f"it must be {FORMS}.")
    typed = (as_field(None if value == "None" else value) for value in values)
    return CategoricalDistribution([*dict.fromkeys(typed)])


def _step(text: str) -> float:
    """Return the step of a range; UserError if it is none."""
    try:
        step = float(text)
    except ValueError:
        step = math.nan
    if not 0.0 < step < math.inf:
        raise UserError(f"the step {text} must be a number greater than 0, or `log`.")
    return step
