"""Write the site's reference of commands and of the Python API: docs/reference, not kept in git.

conf.py calls it for each build. Commands are described by the parsers that read their flags, names
by their docstrings.
"""

import argparse
import inspect
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import is_dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import tyro
from flag_tables import flag_tables

from mjfleet.cli.dispatcher import COMMANDS, mjfleet
from mjfleet.submit.command import CLUSTERS

REFERENCE = Path(__file__).with_name("reference")
GUIDES = {
    "train": "configuration.md#all-flags",
    "play": "watching.md",
    "tasks": "tasks.md#where-tasks-are-found",
    "new-task": "tasks.md#your-own-robot",
    "check-task": "tasks.md#what-check-task-finds",
    "doctor": "doctor.md",
    "tune": "configuration.md#how-many-environments",
    "submit": "clusters.md",
    "bench": "speed.md",
    "sweep": "many-runs.md#sweeps",
    "runs": "many-runs.md",
    "plot": "watching.md",
    "compare": "many-runs.md#comparing-runs",
    "report": "watching.md#report",
    "export": "deploy.md",
    "completion": "start.md#completion",
    "inspect": "tasks.md#nan",
    "clip": "tracking.md",
}
"""Where the pages tell more about each command; of `train`, all flags."""
SECOND_WORDS = {"submit": [*CLUSTERS], "clip": ["show", "convert"]}
"""What commands with several parsers have after their name."""
MODULES = {
    "mjfleet": ("api.md", ["mjfleet.api.policy.Policy"]),
    "mjfleet.env": ("tasks.md", ["mjfleet.sim.Simulation"]),
    "mjfleet.parts": ("tasks.md", []),
    "mjfleet.config": ("configuration.md", []),
    "mjfleet.gym": ("gymnasium.md", []),
    "mjfleet.rl": (
        "networks.md",
        [
            "mjfleet.rl.runner_hook.RunnerHook",
            "mjfleet.rl.algorithm.Algorithm",
        ],
    ),
}
"""The page about each public module, and what its page in the reference has besides its names."""


def main() -> None:
    """Write a page for each command and each public module, and one that lists each kind."""
    shutil.rmtree(REFERENCE, ignore_errors=True)
    REFERENCE.mkdir()
    pages = {name: command_page(name) for name in COMMANDS}
    pages |= {name: module_page(name) for name in MODULES}
    commands = {name: summary for name, (_, summary) in COMMANDS.items()}
    modules = {name: first_line(import_module(name)) for name in MODULES}
    pages["commands"] = list_page("Commands", commands)
    pages["python"] = list_page("Python API", modules)
    for name, lines in pages.items():
        (REFERENCE / f"{name}.md").write_text("\n".join(lines) + "\n")


def list_page(title: str, texts: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a page that leads to others."""
    yield from (f"# {title}", "", "| | |", "|---|---|")
    for name, text in texts.items():
        yield f"| [`{name}`]({name}.md) | {text} |"
    yield from ("", "```{toctree}", ":hidden:", "", *(f"{n} <{n}>" for n in texts), "```")


def command_page(name: str) -> Iterator[str]:
    """Yield the lines of a command's page."""
    found = parser_of(name)
    if isinstance(found, str):
        yield from (f"# `mjfleet {name}`", "", "```text", found.strip(), "```", "")
    else:
        yield from (f"# `{found.prog.removesuffix(' <task>')}`", "", *description(found))
    if name == "train":
        yield from flag_tables()
    for words in SECOND_WORDS.get(name, ()):
        found = parser_of(name, *words.split())
        assert not isinstance(found, str)
        yield from (f"## `{found.prog.removesuffix(' <task>')}`", "", *description(found))
    yield f"More: [](../{GUIDES[name]})."


def parser_of(*words: str) -> argparse.ArgumentParser | str:
    """Return the parser of a command, or its help if that is made without one."""
    found: list[Any] = []

    cli = tyro.cli

    def keep_parser(kind: Any, *, args: Any, **settings: Any) -> Any:
        if settings.get("add_help") is False:  # The first of two steps.
            return cli(kind, args=args, **settings)
        del settings["return_unknown_args"]  # A parser of its own has none.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            found.append(tyro.extras.get_parser(kind, **settings))
        sys.exit()  # As tyro does once it has printed the help.

    printed = StringIO()
    with (
        mock.patch.object(tyro, "cli", keep_parser), redirect_stdout(printed), suppress(SystemExit)
    ):  # fmt: skip
        mjfleet([*words, "--help"])
    return found[0] if found else printed.getvalue()


def description(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield what a command does, how it is typed, and a table of its arguments."""
    summary, _, more = (parser.description or "").partition("\n\n")
    actions = [action for action in parser._actions if action.dest != "help"]
    words = [str(action.metavar) for action in actions if not action.option_strings]
    yield from (cell(summary), "", "```text", " ".join([parser.prog, *words, "[flags]"]), "```", "")
    if more:
        yield from (("```text", more, "```", "") if "\n" in more else (cell(more), ""))
    yield from ("| argument | value | default | meaning |", "|---|---|---|---|")
    for action in actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings or [action.metavar])
        is_valued = action.option_strings and action.nargs != 0
        value = f"`{action.metavar}`".replace(",", ", ") if is_valued else ""
        text = (action.help or "").replace("%%", "%")
        meaning, default = re.findall(r"^(.*?)(?: \((default: .*|required)\))?$", text, re.S)[0]
        default = default.removeprefix("default: ")
        if action.nargs == 0:
            default = "on" if default == "True" else "off"
        elif default != "required":
            default = f"`{default}`" if default else "none"
        yield f"| {names} | {cell(value)} | {cell(default)} | {cell(meaning)} |"
    yield ""


def module_page(name: str) -> Iterator[str]:
    """Yield the lines of the page of a public module."""
    page, others = MODULES[name]
    homes = {found: path for module in MODULES for path, found in public(module).items()}
    paths = [homes[found] for found in public(name).values()]
    own = [path for path in paths if path.rpartition(".")[0] == name]
    text = first_line(import_module(name))
    yield from (f"# `{name}`", "", f"{text} More: [](../{page}).", "")
    if elsewhere := [f"{{py:obj}}`~{path}`" for path in paths if path not in own]:
        yield from (f"Also here, for short: {', '.join(elsewhere)}.", "")
    yield "```{eval-rst}"
    for path in [*own, *others]:
        owner, _, last = path.rpartition(".")
        found = getattr(import_module(owner), last)
        if inspect.isclass(found):
            bases = found.__mro__[1:]
            known = {
                b.__name__ for b in bases if b in homes or not b.__module__.startswith("mjfleet")
            }
            yield from (f".. autoclass:: {path}", f"   :inherited-members: {', '.join(known)}")
            yield from ["   :show-inheritance:"] * any(base in homes for base in bases)
            yield from ["   :undoc-members:"] * is_dataclass(found)
        else:
            yield f".. auto{'function' if inspect.isfunction(found) else 'data'}:: {path}"
        yield ""
    yield "```"


def first_line(documented: Any) -> str:
    """Return the first line of a docstring."""
    return (documented.__doc__ or "").partition("\n")[0]


def public(name: str) -> dict[str, Any]:
    """Return the public classes and functions of a module, by their paths."""
    module = import_module(name)
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == name]
    names = getattr(module, "__all__", [n for n in own if not n.startswith("_")])
    found = {f"{name}.{n}": getattr(module, n) for n in names}
    return {p: v for p, v in found.items() if inspect.isclass(v) or inspect.isfunction(v)}


def cell(text: str | None) -> str:
    """Return a text in one line for a table; `<task>` is no HTML, and `|` ends no column."""
    line = " ".join((text or "").split()).replace("|", "\\|")
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "\\<", line)
