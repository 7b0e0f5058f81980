"""`mjfleet export RUN`: writes a trained policy as a file. Importing it imports nothing heavy."""

import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from mjfleet.config import TrainConfig
from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import NAME, Checked, Folder, OptionalFolder, OptionalName
from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import about
from mjfleet.runs.pretrained import PLAYED, recorded_in
from mjfleet.runs.run_files import only
from mjfleet.tools.output_file import check_output, write_output
from mjfleet.tools.trained_policy import find_policy, load_policy
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra
from mjfleet.utils.safe_read import read_json
from mjfleet.worker.thread_limits import import_prepared

if TYPE_CHECKING:
    from mjfleet.env import Env

Loaded = tuple["Env[Any]", Any, int]
"""Environments, the policy, and its number of iterations."""
EXPORT_MAX_ENVS = 64
VERSION_ENTRY = "mjfleet_version"  # Marks what `mjfleet export` has written.
PRETRAINED = "pretrained"
FORMATS = {
    "onnx": (".onnx", ("onnx", "onnxruntime", "onnxscript")),
    "mjlab": (".onnx", ("onnx", "onnxruntime", "onnxscript")),
    "torchscript": (".pt", ()),
    PRETRAINED: (".pt", ()),
}
"""The suffix of each format, and what it needs of the optional dependencies."""


@dataclass(frozen=True, kw_only=True)
class ExportArguments(Checked):
    """Write a trained policy, its normaliser included, as a file that runs without mjfleet."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN"), NAME]
    """Run directory (its newest checkpoint), checkpoint, part of a run's name, `latest`, or a run
    on W&B: `wandb:<entity>/<project>/<run>`, also with `:model_<n>`; or the file of a pretrained
    policy."""
    format: Literal["onnx", "mjlab", "torchscript", "pretrained"] = "onnx"
    """Format of the file. `mjlab`: ONNX that also returns the frames of a clip, as mjlab's does.
    `pretrained`: a checkpoint with only the policy for `play --pretrained`; its place is
    pretrained/<task>.pt in the task's folder."""
    clip: OptionalName = None
    """The only clip to export with a policy that follows several; `None`: all."""
    output: OptionalName = None
    """File to write, and others beside it; `None`: exported/policy.onnx (.pt) in the run, or for a
    pretrained policy in the current folder."""
    pretrained: bool = False
    """Export the policy that comes with a task: RUN is the task's name."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""
    tasks_dir: OptionalFolder = None
    """Folder of task folders that is searched first; `None`: the folder that the run used."""
    as_trained: bool = False
    """Use the run's copy of the task's code, with which the policy was trained."""


def export(arguments: Sequence[str]) -> int:
    """Write the policy and its metadata; return 1 if the policy could not be reproduced."""
    parsed = parse_flags(ExportArguments, arguments, "mjfleet export")
    suffix, packages = FORMATS[parsed.format]
    need_extra("export", f"--format {parsed.format}", packages)
    output = parsed.output and check_output("--output", parsed.output, [suffix])
    found, config, trained = find_policy(
        parsed.run, Path(parsed.log_root), parsed.tasks_dir,
        is_pretrained=parsed.pretrained, as_trained=parsed.as_trained,
    )  # fmt: skip
    name = found.name if parsed.format == PRETRAINED else "policy"
    output = output or (trained.run_dir or Path()) / "exported" / f"{name}{suffix}"
    _refuse_to_replace(output, parsed.format, found.name)
    config = only(found, config, parsed.clip) if parsed.clip else config
    print_line(f"exporting {trained.policy}")
    import_prepared("cpu", "rl.build_algorithm")
    few = config.with_num_envs(min(config.env.num_envs, EXPORT_MAX_ENVS))
    loaded = load_policy(found, few, trained.policy)
    if parsed.format == PRETRAINED:
        _write_pretrained(found.name, config, trained.record.get("git", {}), loaded, output)
        return 0
    return _write_graph(found.name, loaded, parsed.format, output)


def _write_graph(
    task: str, loaded: Loaded, kind: Literal["onnx", "mjlab", "torchscript"], output: Path
) -> int:
    """Write the policy as a graph with its metadata; return 1 if it could not be reproduced."""
    from mjfleet.tools.export.mjlab_form import frames_of_clip
    from mjfleet.tools.export.policy_graph import (
        COMPARED_OBSERVATIONS,
        compare,
        images_of,
        make_graph,
    )
    from mjfleet.tools.export.robot_metadata import describe
    from mjfleet.video.state_recording import pack_model

    env, policy, iteration = loaded
    entries: dict[str, Any] = {
        "task": task,
        VERSION_ENTRY: version("mjfleet"),
        "iteration": iteration,
        **describe(env, (*policy.obs_groups, *images_of(policy))),
    }
    text = json.dumps(entries, indent=2) + "\n"
    # Each list of numbers or names is put on one line.
    metadata = re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\n *", " ", found[0]), text)
    sizes = [group["size"] for group in entries["observations"]]
    arrays = env.deployment_arrays()
    frames = frames_of_clip(entries, arrays) if kind == "mjlab" else None
    graph = make_graph(policy, sizes, kind, metadata, frames)
    difference, tolerance = compare(policy, sizes, kind, graph)
    result = f"actions differ by at most {difference:.2g} from the checkpoint's"
    print_line(f"{COMPARED_OBSERVATIONS:,} random observations: {result}")
    if not difference <= tolerance:  # True for NaN as well.
        limit = f"rounding explains {tolerance:.2g} at most"
        print(f"error: {limit}: nothing was written", file=sys.stderr)
        return 1
    model = pack_model(env.sim.model)
    contents = {".json": metadata.encode(), ".mjb": model, output.suffix: graph}
    if arrays:
        contents[".npz"] = _packed(arrays)
    _write(output, contents)
    *others, last = (output.stem + suffix for suffix in contents if suffix != output.suffix)
    print_line(f"wrote {output}, {', '.join(others)} and {last}")
    return 0


def _packed(arrays: Mapping[str, Any]) -> bytes:
    """Return tensors as the content of an .npz file."""
    import numpy as np

    file = io.BytesIO()
    np.savez_compressed(file, **{name: value.cpu().numpy() for name, value in arrays.items()})
    return file.getvalue()


def _write_pretrained(
    task: str, config: TrainConfig, git: Mapping[str, Any], loaded: Loaded, output: Path
) -> None:
    """Write the actor and its normaliser with what they did in an episode of each environment."""
    import torch

    from mjfleet.rl.checkpoints.files import pack_checkpoint
    from mjfleet.rl.checkpoints.initial_networks import describe_networks
    from mjfleet.tools.play.policy_episodes import Player, evaluate

    env, policy, iteration = loaded
    with torch.inference_mode():
        sums = evaluate(Player(env, policy, forget=policy.reset), 1)
    print_line(sums.table)
    commits = [str(state["commit"]) for state in git.values()]
    known = {
        "task": task,
        VERSION_ENTRY: version("mjfleet"),
        "commit": commits[0] if commits else None,
        "iteration": iteration,
        "networks": {"actor": describe_networks(env, config.agent)["actor"]},
        "config": recorded_in(config),
        PLAYED: sums.table,
    }
    state = {
        "actor_state_dict": policy.state_dict(),
        "critic_state_dict": {},
        "optimizer_state_dict": {"state": {}, "param_groups": [{"lr": 0.0}]},
        "iter": iteration,
    }
    content = pack_checkpoint(state, known)
    _write(output, {output.suffix: content})
    print_line(f"wrote {output}: {len(content) / 1000:.0f} kB")


def _write(output: Path, contents: dict[str, bytes]) -> None:
    """Write the file `output` and those beside it, by their suffixes."""
    for suffix, content in contents.items():
        write_output(output.with_suffix(suffix), lambda file, c=content: file.write(c))


def _refuse_to_replace(output: Path, kind: str, task: str) -> None:
    """Raise UserError if files would be replaced that are not of an export of the same task."""
    known, beside = about(output), () if kind == PRETRAINED else (".json", ".mjb", ".npz")
    with suppress(OSError, ValueError):  # Then it is no export.
        known = known or read_json(output.with_suffix(".json"))
    is_export = isinstance(known, dict) and VERSION_ENTRY in known and known.get("task") == task
    for file in map(output.with_suffix, (output.suffix, *beside)):
        if file.exists() and not is_export:
            raise UserError(f"--output {output}: {file} is not of an export of {task}.")
