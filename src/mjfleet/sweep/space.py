"""Reads the values that a sweep tries, checked by the task's configuration. Runs in the launcher.

`agent.algorithm.learning-rate=1e-4..1e-2:log` is a range, `agent.algorithm.gamma=0.9,0.95` a list.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from mjfleet.cli.flag_table import Flag, flags_of
from mjfleet.config import TrainConfig, by_dotted_name, from_dict, to_dict
from mjfleet.config.rank_seed import shared_seed
from mjfleet.config.train_config import decides_learning
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import read_config
from mjfleet.utils.console import in_a_line

RANGE = re.compile(r"([^,\s]+?)\.\.([^,:\s]+)(?::(\S+))?")
FORMS = "a range such as `1e-4..1e-2:log` or `0..1:0.1`, or a list such as `1,2,4`"
SEED = "agent.seed"
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]
"""What is tried, by flag without dashes: agent.algorithm.learning-rate. A value of a field that is
a list is written as JSON, since Optuna has only scalars."""


def read_space(
    words: Sequence[str], file: str | None, config: TrainConfig, task: str
) -> tuple[Space, dict[str, str]]:
    """Return what is tried, also as it is typed; a word counts more than the file.

    Each of the words is `name=values`. The file, YAML or JSON, has values by name, which may be one
    of YAML's lists; if it names a task, it has to be this one.

    Raises:
        UserError: a field is unknown, cannot be tried, or does not allow some of the values.
    """
    content = {} if file is None else read_config(file, f"--space {file}", task)
    typed: dict[str, tuple[str, str]] = {}
    for name, values in by_dotted_name(content).items():
        text = values if isinstance(values, str) else json.dumps(values)
        text = text[1:-1] if isinstance(values, list) else text
        typed[_flag(name)] = f"--space {file}: {name}={text}", text
    for word in words:
        name, _, text = word.partition("=")
        typed[_flag(name)] = f"--try {word}", text
    if not typed:
        raise UserError("nothing is to vary: give --try NAME=VALUES, or --space with a file.")
    fields = {f.name: f for f in flags_of(TrainConfig, config) if decides_learning(_dotted(f.name))}
    space = Space()
    for name, (source, text) in typed.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=3, cutoff=0.4)
            hint = f"Did you mean {' or '.join(near)}?" if near else "See `train <task> --help`."
            raise UserError(f"{source}: there is no field {name} that can be tried. {hint}")
        try:
            space[name] = _distribution(fields[name], text.strip(), config)
        except (UserError, ValueError) as error:
            raise UserError(f"{source}: {in_a_line(error)}") from None
    return space, {name: text for name, (_, text) in typed.items()}


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with a trial's values.

    Raises:
        UserError: they are not allowed, alone or together.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = _dotted(name).split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(value) if isinstance(value, str) and value[:1] == "[" else value
    return from_dict(config, nested)


def with_seeds_apart(space: Space, workers: int) -> tuple[Space, str]:
    """Return the space with a range of seeds in steps of a trial's number of workers.

    Also returns a warning if the workers of two trials would share a seed, or empty text.
    """
    match space.get(SEED):
        case IntDistribution(low=low, high=high, step=1, log=False):
            apart = range(low, high + 1, workers)
            return space | {SEED: IntDistribution(low, apart[-1], step=workers)}, ""
        case IntDistribution(low=low, high=high, step=step):
            return space, shared_seed(range(low, high + 1, step)[:2], workers)
        case CategoricalDistribution(choices=seeds):
            return space, shared_seed((seed for seed in seeds if isinstance(seed, int)), workers)
    return space, ""


def defaults_in(space: Space, config: TrainConfig) -> dict[str, Any]:
    """Return the configuration's own values, or {} if some are not in the space."""
    values = {name: _value_of(config, name) for name in space}
    try:
        create_trial(state=TrialState.RUNNING, params=values, distributions={**space})
    except (ValueError, TypeError):
        return {}
    return values


def _flag(name: object) -> str:
    return str(name).strip().removeprefix("--").replace("_", "-")


def _dotted(flag: str) -> str:
    return flag.replace("-", "_")


def _value_of(config: TrainConfig, name: str) -> Any:
    value = by_dotted_name(to_dict(config))[_dotted(name)]
    return json.dumps(value) if isinstance(value, list) else value


def _distribution(field: Flag, text: str, config: TrainConfig) -> Distribution:
    """Return what a text says of a field; an error if it says what the field does not allow."""
    if found := RANGE.fullmatch(text):
        one = _range(field, *found.groups())
        for end in (one.low, one.high):
            with_values(config, {field.name: end})
        return one
    try:
        values = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):
        values = []
    if not values:
        raise UserError(f"it must be {FORMS}.")
    each = (None if value == "None" else value for value in values)
    typed = (_value_of(with_values(config, {field.name: v}), field.name) for v in each)
    return CategoricalDistribution([*dict.fromkeys(typed)])


def _range(
    field: Flag, first: str, last: str, how: str | None
) -> FloatDistribution | IntDistribution:
    """Return the distribution of `first..last`, `first..last:log` or `first..last:step`."""
    plain = get_args(field.hint)[0] if get_origin(field.hint) is Annotated else field.hint
    options = () if field.item else (plain, *get_args(plain))  # It may also be None or a word.
    if not {float, int} & {*options}:
        raise UserError("the field is no number; give a list of values, such as a,b.")
    low, high, is_log = float(first), float(last), how == "log"
    step = None if is_log or how is None else float(how)
    if not low <= high:
        raise UserError(f"the range is empty: {first} is not below {last}.")
    if float in options:
        return FloatDistribution(low, high, log=is_log, step=step)
    if low % 1 or high % 1 or (step or 0) % 1:
        raise UserError(f"the field takes whole numbers only: {FORMS}.")
    return IntDistribution(int(low), int(high), log=is_log, step=int(step or 1))
