"""`mjfleet completion SHELL`: lets a shell complete tasks, runs, flags and their values.

The script that it prints calls `mjfleet completion --words` at each press of the tab key.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from itertools import takewhile
from pathlib import Path

from mjfleet.config.flags import LIST_FLAGS, peek
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.run_lookup import LATEST, groups_in, name_of, runs_in

WORDS = "--words"
SCRIPTS = {
    "bash": """
_mjfleet() {
    local IFS=$'\\n'
    COMPREPLY=($(mjfleet completion --words "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
}
complete -o default -F _mjfleet mjfleet train play
""",
    "zsh": """
autoload -Uz compinit && (( $+functions[compdef] )) || compinit
_mjfleet() {
    local -a found
    found=("${(@f)$(mjfleet completion --words "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -a found || _files
}
compdef _mjfleet mjfleet train play
""",
    "fish": """
function __mjfleet
    mjfleet completion --words (commandline -opc) (commandline -ct) 2>/dev/null
end
for program in mjfleet train play
    complete -c $program -a '(__mjfleet)'
end
""",
}
TASK_FIRST = ("train", "sweep", "tune", "play", "check-task")
NAME_A_RUN = ("--resume", "--init-from", "--teacher")
RUNS = ("plot", "compare", "report", "export", "inspect", "runs")


def completion(arguments: Sequence[str]) -> int:
    """Print a shell's script, or with --words what may stand in the place of the last word."""
    from mjfleet.cli.dispatcher import COMMANDS

    if arguments[:1] == [WORDS]:
        words = [word for word in arguments[1:] if word != "="]  # bash makes it a word.
        for found in candidates(words, {name: place for name, (place, _) in COMMANDS.items()}):
            print(found)
        return 0
    if {"-h", "--help"} & set(arguments) or len(arguments) != 1:
        print(f"usage: mjfleet completion {{{','.join(SCRIPTS)}}}\n\n{__doc__}")
        return 0 if arguments else 2
    if arguments[0] not in SCRIPTS:
        raise UserError(f"completion {arguments[0]}: it must be {', '.join(SCRIPTS)}.")
    print(SCRIPTS[arguments[0]].strip())
    return 0


def candidates(words: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """Return what may stand in the place of the last word; nothing where a file may.

    Args:
        words: the command line up to the cursor, its program first.
        places: `module:function` of each command.
    """
    (command, *typed), last = words[:-1], words[-1]
    if command == "mjfleet":
        if not typed:
            return _beginning_with(last, places)
        command, *typed = typed
    previous = typed[-1] if typed else ""
    if previous in NAME_A_RUN or (command in RUNS and not (previous + last).startswith("-")):
        root = Path(peek(typed, "--log-root") or "logs")
        return _runs(root, last)
    if command in places and (last.startswith("-") or previous.startswith("-")):
        flags = _flags(places[command], takewhile(lambda word: not word.startswith("-"), typed))
        if not last.startswith("-"):
            return _beginning_with(last, flags.get(previous, ()))
        name, equals, _ = last.partition("=")
        found = [f"{name}={value}" for value in flags.get(name, ())] if equals else flags
        return _beginning_with(last, found)
    if command not in TASK_FIRST or typed:
        return []
    tasks = _beginning_with(last, discover(os.environ).tasks)
    return tasks or (_runs(Path("logs"), last) if command == "play" else [])


def _runs(root: Path, start: str) -> list[str]:
    """Return the names of a log root's runs and groups that begin with `start`, newest first."""
    found = runs_in(root) + groups_in(root)
    runs = sorted((run for run in found if _is_word(name_of(run))), reverse=True)
    full = _beginning_with(start, [LATEST, *map(name_of, runs)])
    return full or _beginning_with(start, [run.name for run in runs])


def _flags(place: str, words: Iterable[str]) -> dict[str, list[str]]:
    """Return the flags of a command with these words, and what each may have as a value."""
    module, _, function = place.partition(":")
    with redirect_stdout(StringIO()) as listed, suppress(SystemExit, UserError):
        getattr(import_module(f"mjfleet.{module}"), function)([*words, LIST_FLAGS])
    lines = [line.split() for line in listed.getvalue().splitlines()]
    return {name: values for name, *values in lines}


def _is_word(name: str) -> bool:
    """Return whether shells take a name, which may be somebody else's, as it is."""
    return name.isprintable() and not set(name) & set(" \\'\"$`!&;|<>(){}[]*?~#^=")


def _beginning_with(start: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(start)]
