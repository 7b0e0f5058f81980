"""Answers flags of other launchers by our own, and reads values as other programs write them."""

import re
from collections.abc import Iterable, Mapping, Sequence

from mjfleet.cli.flag_table import Flag
from mjfleet.errors import UserError

NUM_ENVS = "use --env.num-envs (of each worker) or --total-envs (of all workers)"
HOSTS = "use --hosts, typed once: mjfleet starts the workers of all hosts by ssh"
DEVICES = "use --gpu-ids: `0 1` or `all` starts one worker on each GPU, `None` uses the CPU"
RESUME = "use --resume with a run, a checkpoint (<run>/checkpoints/model_<n>.pt) or `latest`"
VIDEO = "use --video-interval while it trains, or `play --video FILE` afterwards"
TASK = "the task is the first word: `train <task>`"
LENGTH = "use --total-steps (steps of all environments together) or --agent.max-iterations"
WINDOW = "leave it out, training never opens a window"
FOREIGN = {
    "task": TASK,
    "env-id": TASK,
    "env-name": TASK,
    "num-envs": NUM_ENVS,
    "env.scene.num-envs": NUM_ENVS,
    "n-envs": NUM_ENVS,
    "max-utilization": "use --env.num-envs auto",
    "max-iterations": "use --agent.max-iterations",
    "seed": "use --agent.seed",
    "distributed": DEVICES,
    "device": DEVICES,
    "sim-device": DEVICES,
    "rl-device": DEVICES,
    "num-gpus": DEVICES,
    "nproc-per-node": DEVICES,
    "nnodes": HOSTS,
    "node-rank": HOSTS,
    "master-addr": HOSTS,
    "master-port": HOSTS,
    "coordinator-address": HOSTS,
    "amp": "use --agent.algorithm.use-mixed-precision",
    "headless": WINDOW,
    "livestream": WINDOW,
    "enable-cameras": WINDOW,
    "total-timesteps": LENGTH,
    "timesteps": LENGTH,
    "lr": "use --agent.algorithm.learning-rate",
    "learning-rate": "use --agent.algorithm.learning-rate",
    "wandb": "use --agent.logger wandb",
    "load-run": RESUME,
    "checkpoint": RESUME,
    "checkpoint-file": RESUME,
    "agent.resume": RESUME,
    "agent.load-run": RESUME,
    "agent.load-checkpoint": RESUME,
    "run-name": "use --agent.run-name",
    "experiment-name": "use --agent.experiment-name",
    "logger": "use --agent.logger",
    "track": "use --agent.logger wandb",
    "log-project-name": "use --agent.wandb.project",
    "wandb-project-name": "use --agent.wandb.project",
    "wandb-entity": "use --agent.wandb.entity",
    "wandb-name": "use --agent.run-name",
    "wandb-run-path": "use --resume wandb:<entity>/<project>/<run>",
    "agent.wandb-project": "use --agent.wandb.project",
    "agent.wandb-tags": "use --agent.wandb.tags",
    "video": VIDEO,
    "video-length": VIDEO,
    "enable-nan-guard": "leave it out, every rollout is checked",
    "ml-framework": "use --agent.library: `rsl_rl`, `skrl`, `skrl-jax` or `rl_games`",
}
"""Flags of mjlab, Isaac Lab, EmbodiChain, CleanRL and others: what to type instead."""
OF_PLAY = {
    "num-envs": "use --env.num-envs",
    "env.scene.num-envs": "use --env.num-envs",
    "checkpoint-path": RESUME,
    "agent": "use --actions: `zero` or `random`, or --resume for a policy",
    "real-time": "use --viewer: `web` or `native`, in real time",
    "device": "use --gpu-ids: the index of a GPU, or `None` for the CPU",
}
"""Answers of `play` where these differ from those of `train`."""
SWITCHES = {"true": True, "false": False}


def as_typed_here(words: Sequence[str], flags: Iterable[Flag]) -> list[str]:
    """Return the words of a command line as this program expects them.

    `--flag=True` and `--flag False` become a switch's own forms, and `--key=[64,64]`,
    `--key "[64, 64]"` and `--key 64,64` the words of a list.

    Raises:
        UserError: a flag is another launcher's; the message names ours.
    """
    known = {flag.name: flag for flag in flags}
    known |= {flag.off: flag for flag in known.values() if flag.is_switch}
    found: list[str] = []
    newest: Flag | None = None  # The flag to which words without dashes belong.
    switch: Flag | None = None  # The word before, if it may have a value.
    for word in words:
        name, equals, value = word.partition("=")
        if switch and word.lower() in SWITCHES:
            found[-1] = _switched(switch, found[-1], word)
            switch = None
            continue
        switch = None
        if not name.startswith("--"):
            is_value = newest is not None and found[-1].startswith("--")
            if equals and not is_value:
                _refuse_assignment(word, known)
            found += _items(word, newest)
            continue
        typed, name = name, name.removeprefix("--").replace("_", "-")
        flag = known.get(name)
        if flag is None and "env.num-envs" in known:
            theirs = FOREIGN if "total-envs" in known else FOREIGN | OF_PLAY
            if name in theirs:
                raise UserError(f"there is no {typed}: {theirs[name]}.")
        newest = None if flag is None or flag.is_switch else flag
        if newest and equals:
            found += [f"--{name}={value}"] if newest.item is None else [f"--{name}"]
            found += [] if newest.item is None else _items(value, newest)
        elif flag and flag.is_switch and value.lower() in SWITCHES:
            found.append(_switched(flag, typed, value))
        else:
            switch = flag if flag and flag.is_switch and not equals else None
            found.append(word)
    return found


def _switched(flag: Flag, typed: str, value: str) -> str:
    """Return the form of a switch, typed in either form, that has a value."""
    is_on = SWITCHES[value.lower()] == (typed.replace("_", "-") == f"--{flag.name}")
    return f"--{flag.name if is_on else flag.off}"


def _refuse_assignment(word: str, known: Mapping[str, Flag]) -> None:
    """Answer Hydra's `env.decimation=2`."""
    name, _, value = word.lstrip("+").partition("=")
    if "." in name and (flag := name.replace("_", "-")) in known:
        raise UserError(f"{word}: write it as --{flag} {value}.")


def _items(text: str, flag: Flag | None) -> list[str]:
    """Return the items of a list that is written as one word; any other text as it is."""
    if flag is None or flag.item is None:
        return [text]
    if flag.item in (int, float):
        return re.split(r"[][(), ]+", text.strip("[](), "))
    if text[:1] + text[-1:] not in ("[]", "()"):
        return [text]
    items = [item.strip() for item in text[1:-1].split(",") if item.strip()]
    return [re.sub(r"""^(['"])(.*)\1$""", r"\2", item) for item in items]
