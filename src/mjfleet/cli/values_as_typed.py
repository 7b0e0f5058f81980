"""Reads flags' values as other programs write them: Python's lists, True and False, Hydra."""

import re
from collections.abc import Iterable, Mapping, Sequence

from mjfleet.cli.flag_table import Flag
from mjfleet.errors import UserError

SWITCHES = {"true": True, "false": False}


def as_typed_here(words: Sequence[str], flags: Iterable[Flag]) -> list[str]:
    """Return the words of a command line as this program expects them.

    `--flag=True` and `--flag False` become a switch's own forms, and `--key=[64,64]`,
    `--key "[64, 64]"` and `--key 64,64` the words of a list.

    Raises:
        UserError: a flag is written as Hydra's `env.decimation=2`.
    """
    known = {name: flag for flag in flags for name in flag.names}
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
