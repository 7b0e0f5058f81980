"""The help of `train`: the task's own flags and the common ones, then the names of all others."""

import shutil
import textwrap
from contextlib import suppress
from dataclasses import field, make_dataclass
from itertools import groupby
from typing import Annotated

import tyro

from mjfleet.config import TrainConfig
from mjfleet.config.dict_conversion import plain
from mjfleet.config.field_kinds import Leaf, leaves
from mjfleet.config.flags import as_words, field_texts, flags_of, parse_flags
from mjfleet.config.train_config import field_kinds

COMMON = (
    "gpu_ids", "cpu_workers", "hosts", "engine", "env.num_envs", "total_envs",
    "agent.max_iterations", "agent.seed", "agent.algorithm.learning_rate", "agent.run_name",
    "agent.logger", "agent.save_interval", "resume", "config", "max_restarts", "eval_interval",
    "video_interval", "log_root", "plain", "dry_run",
)  # fmt: skip
"""The twenty fields whose flags `--help` explains for every task; `--help-all` explains all."""
MAX_WIDTH = 100  # Columns of a line.


def print_help(config: TrainConfig, prog: str, description: str) -> None:
    """Print the help of `train`, whose defaults are those of `config`.

    What a task adds to the environment, the algorithm or a network comes first.
    """
    known = {leaf.name: leaf for leaf in leaves(TrainConfig, config)}
    own = [name for name in known if name not in field_kinds()]
    explained = [known.pop(name) for name in (*own, *COMMON) if name in known]
    shown = make_dataclass("Explained", map(_as_field, explained))
    with suppress(SystemExit):
        parse_flags(shown, ["--help"], prog, description=description)
    print(f"All others with their values; `{prog} --help-all` explains them:\n")
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    for _, group in groupby(known.values(), lambda one: one.name.rpartition(".")[0]):
        flags = " ".join(word for one in group for word in as_words(one.name, plain(one.value)))
        print(textwrap.fill(flags, width, subsequent_indent="  ", break_on_hyphens=False))


def _as_field(leaf: Leaf) -> tuple[str, object, object]:
    """Return a field as one of a flat dataclass."""
    name, *short = flags_of(leaf.name)
    shown = tyro.conf.arg(name=name.removeprefix("--"), aliases=short)
    text = {"help": field_texts(leaf.owner).get(leaf.name.rpartition(".")[2], "")}
    made = field(default_factory=lambda: leaf.value, metadata=text)
    return leaf.name.replace(".", "_"), Annotated[leaf.hint, shown], made
