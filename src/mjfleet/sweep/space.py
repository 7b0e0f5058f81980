"""Reads the values that a sweep tries, checked by the task's configuration. Runs in the launcher.

`agent.algorithm.learning-rate=1e-4..1e-2:log` is a range, `agent.algorithm.gamma=0.9,0.95` a list.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from mjfleet.config import TrainConfig, by_dotted_name, from_dict, to_dict
from mjfleet.config.rank_seed import shared_seed
from mjfleet.config.train_config import decides_learning
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import read_config
from mjfleet.utils.console import in_a_line

RANGE = re.compile(r"([^,\s]+?)\.\.([^,:\s]+)(?::(\S+))?")
FORMS = "a range such as `1e-4..1e-2:log` or `0..1:0.1`, or a list such as `1,2,4`"
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]
"""What is tried, by dotted name: agent.algorithm.learning_rate. A value of a field that is a list
is written as JSON, since Optuna has only scalars."""


def read_space(
    tried: Sequence[str], file: str | None, config: TrainConfig, task: str
) -> tuple[Space, dict[str, str]]:
    """Return the values that are tried, also as they are typed.

    Args:
        tried: texts `name=values`, which count more than the file.
        file: YAML or JSON with values by name, which may be a list of YAML's.
        config: of the trials.
        task: the file's, if it names one.

    Raises:
        UserError: a field is unknown, cannot be tried, or does not allow some of the values.
    """
    content = {} if file is None else read_config(file, f"--space {file}", task)
    typed = dict[str, tuple[str, str]]()  # By name: the flag for messages, and the values.
    for name, values in by_dotted_name(content).items():
        text = values if isinstance(values, str) else json.dumps(values)
        text = text[1:-1] if isinstance(values, list) else text
        typed[_dotted(name)] = f"--space {file}: {name}={text}", text
    for item in tried:
        name, _, text = item.partition("=")
        typed[_dotted(name)] = f"--try {item}", text
    if not typed:
        raise UserError("nothing is to vary: give --try NAME=VALUES, or --space with a file.")
    fields = [name for name in by_dotted_name(to_dict(config)) if decides_learning(name)]
    space = Space()
    for name, (flag, text) in typed.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=3, cutoff=0.4)
            hint = f"Did you mean {' or '.join(near)}?" if near else "See `train <task> --help`."
            raise UserError(f"{flag}: there is no field {name} that can be tried. {hint}")
        try:
            space[name] = _distribution(name, text.strip(), config)
        except (UserError, ValueError) as error:
            raise UserError(f"{flag}: {in_a_line(error)}") from None
    return space, {name: text for name, (_, text) in typed.items()}


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with a trial's values.

    Raises:
        UserError: they are not allowed, alone or together.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(value) if isinstance(value, str) and value[:1] == "[" else value
    return from_dict(config, nested)


def defaults_in(space: Space, config: TrainConfig) -> dict[str, Any]:
    """Return the configuration's own values, or {} if some are not in the space."""
    values = {name: _value_of(config, name) for name in space}
    try:
        create_trial(state=TrialState.RUNNING, params=values, distributions={**space})
    except (ValueError, TypeError):
        return {}
    return values


def seed_warning(space: Space, workers: int) -> str:
    """Return a warning if workers of two trials would share a seed, or empty text."""
    match space.get("agent.seed"):
        case IntDistribution(low=low, high=high, step=step):
            return shared_seed(range(low, high + 1, step)[:2], workers)
        case CategoricalDistribution(choices=seeds):
            return shared_seed((seed for seed in seeds if isinstance(seed, int)), workers)
    return ""


def _dotted(name: object) -> str:
    return str(name).strip().removeprefix("--").replace("-", "_")


def _value_of(config: TrainConfig, name: str) -> Any:
    value = by_dotted_name(to_dict(config))[name]
    return json.dumps(value) if isinstance(value, list) else value


def _distribution(name: str, text: str, config: TrainConfig) -> Distribution:
    """Return the distribution that a text describes.

    Raises:
        UserError, ValueError: it is not one, or has values that the field does not allow.
    """

    def as_field(value: Any) -> Any:
        return _value_of(with_values(config, {name: value}), name)

    if found := RANGE.fullmatch(text):
        first, last, how = found.groups()
        ends = [float(first), float(last)]
        if not ends[0] <= ends[1]:
            raise UserError(f"the range is empty: {first} is not below {last}.")
        low, high = (as_field(int(end) if end.is_integer() else end) for end in ends)
        is_log, step = how == "log", None if how in (None, "log") else float(how)
        if isinstance(low, float):
            return FloatDistribution(low, high, log=is_log, step=step)
        if type(low) is not int:
            raise UserError("the field is no number; give a list of values, such as a,b.")
        if step is not None and not step.is_integer():
            raise UserError("the field takes whole numbers only, and so must be the step.")
        return IntDistribution(low, high, log=is_log, step=1 if step is None else int(step))
    try:
        values = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):
        values = []
    if not values:
        raise UserError(f"it must be {FORMS}.")
    typed = (as_field(None if value == "None" else value) for value in values)
    return CategoricalDistribution([*dict.fromkeys(typed)])
