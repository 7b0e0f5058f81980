"""`mjfleet submit CLUSTER ... -- train ...`: runs a command on a cluster, or prints the file.

Runs in the process that the user started. Imports nothing heavy.
"""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from mjfleet.cli.flags import HELP, LIST_FLAGS, parse_flags
from mjfleet.errors import UserError
from mjfleet.submit.cluster_job import make_job
from mjfleet.submit.clusters import CLUSTERS
from mjfleet.utils.console import print_line

BEGINNINGS = ("--", "mjfleet", "train", "sweep")
"""Words at which the command that is submitted begins."""


def submit(arguments: Sequence[str]) -> int:
    """Submit a job, or print its file; returns the exit code."""
    cluster, words = next(iter(arguments), ""), list(arguments[1:])
    if cluster in ("", *HELP):
        texts = "\n".join(f"  {name:<7}{kind.__doc__}" for name, kind in CLUSTERS.items())
        usage = "usage: mjfleet submit CLUSTER [flags] -- train <task> ...\n\nclusters:"
        print_line(f"{usage}\n{texts}\n\n`mjfleet submit CLUSTER --help` says more.")
        return 0 if cluster else 2
    if cluster not in CLUSTERS:
        raise UserError(f"submit {cluster}: it must be one of {', '.join(CLUSTERS)}.")
    at = next((i for i, word in enumerate(words) if word in BEGINNINGS), len(words))
    flags, command = words[:at], words[at:]
    parsed = parse_flags(CLUSTERS[cluster], flags, f"mjfleet submit {cluster}")
    for word in BEGINNINGS[:2]:
        command = command[command[:1] == [word] :]
    if command[:1] not in (["train"], ["sweep"]) or {*HELP, LIST_FLAGS} & {*command}:
        raise UserError(
            f"after the flags comes the command: mjfleet submit {cluster} ... -- train <task> ... "
            "or sweep <task> ... `train <task> --help` shows its flags."
        )
    typed = shlex.join(flag for flag in flags if flag != "--print")
    job = make_job(parsed, f"mjfleet submit {cluster} {typed} -- {shlex.join(command)}", command)
    text = parsed.file(job)
    if parsed.print:
        print(text, end="")
        return 0
    if not shutil.which(parsed.submit[0]):
        raise UserError(
            f"`{parsed.submit[0]}` is not installed here, so nothing can be submitted. --print "
            "shows the file, for another machine."
        )
    with TemporaryDirectory(prefix="mjfleet-submit-") as folder:
        file = Path(folder, "job.yaml")  # sbatch looks at what is in it.
        file.write_text(text, encoding="utf-8")
        return subprocess.run([*parsed.submit, file], check=False).returncode
