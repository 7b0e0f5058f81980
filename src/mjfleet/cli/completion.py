"""`mjfleet completion SHELL`: lets a shell complete tasks, runs, flags and their values.

The script that it prints calls `mjfleet completion --words` at each press of the tab key.
"""

import os
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from itertools import takewhile
from pathlib import Path

from mjfleet.config.flags import HELP, LIST_FLAGS
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.find_run import LATEST, groups_in, name_of, runs_in

SCRIPTS = {
    "bash": """_mjfleet() { local IFS=$'\\n'; COMPREPLY=($(
    mjfleet completion --words "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)); }
complete -o default -F _mjfleet mjfleet train play""",
    "zsh": """autoload -Uz compinit && (( $+functions[compdef] )) || compinit
_mjfleet() { local -a found
    found=("${(@f)$(mjfleet completion --words "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -a found || _files }
compdef _mjfleet mjfleet train play""",
    "fish": """for program in mjfleet train play; complete -c $program -a '(
    mjfleet completion --words (commandline -opc) (commandline -ct) 2>/dev/null # _mjfleet
    )'; end""",
}
TASK_FIRST = ("train", "sweep", "tune", "play", "tasks", "check-task")
NAME_A_RUN = ("--resume", "--init-from", "--teacher")
RUNS = ("plot", "compare", "report", "export", "inspect", "runs")
UNSAFE = set(" \\'\"$`!&;|<>(){}[]*?~#^=")  # What a shell obeys in a name, which may be anybody's.


def completion(arguments: Sequence[str]) -> int:
    """Print a shell's script, or with --words what may stand in the place of the last word."""
    if arguments[:1] == ["--words"] and len(arguments) > 2:
        found = candidates([word for word in arguments[1:] if word != "="])  # bash makes it a word.
        print("\n".join(found))
    elif (is_help := bool(HELP & {*arguments})) or len(arguments) != 1:
        print(f"usage: mjfleet completion {{{','.join(SCRIPTS)}}}\n\n{__doc__}")
        return 0 if is_help else 2
    elif arguments[0] not in SCRIPTS:
        raise UserError(f"completion {arguments[0]}: it must be {', '.join(SCRIPTS)}.")
    else:
        print(SCRIPTS[arguments[0]])
    return 0


def candidates(line: Sequence[str]) -> list[str]:
    """Return what may stand in the place of a command line's last word; nothing for a file."""
    from mjfleet.cli.dispatcher import COMMANDS

    command, *typed, last = Path(line[0]).name, *line[1:]
    if command == "mjfleet":
        command, typed = (typed or [""])[0], typed[1:]
    previous, offered = typed[-1] if typed else "", list[str]()
    if command == "":
        offered = list(COMMANDS)
    elif previous in NAME_A_RUN or (command in RUNS and not f"{previous}{last}".startswith("-")):
        root = Path(typed[typed.index("--log-root") + 1] if "--log-root" in typed else "logs")
        runs = [LATEST, *sorted(map(name_of, runs_in(root) + groups_in(root)), reverse=True)]
        short = [run.partition("/")[2] for run in runs]
        offered = runs if any(run.startswith(last) for run in runs) else short
    elif command in COMMANDS and "-" in (last[:1], previous[:1]):
        module, _, function = COMMANDS[command][0].partition(":")
        first = takewhile(lambda word: not word.startswith("-"), typed)
        with redirect_stdout(StringIO()) as listed, suppress(SystemExit, UserError):
            getattr(import_module(f"mjfleet.{module}"), function)([*first, LIST_FLAGS])
        flags = {name: values for name, *values in map(str.split, listed.getvalue().splitlines())}
        name = last.partition("=")[0] + "="
        valued = [f"{name}{value}" for value in flags.get(name[:-1], ()) if name in last]
        offered = valued or list(flags if last.startswith("-") else flags.get(previous, ()))
    elif command in TASK_FIRST and not typed:
        offered = list(discover(os.environ).tasks)
    fits = [word for word in offered if word.startswith(last) and word.isprintable()]
    return [word for word in fits if "=" in last or not UNSAFE & set(word)]
