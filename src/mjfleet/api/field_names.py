"""Messages of the commands, for a caller who has written Python's names instead of flags."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mjfleet.errors import UserError

# A command, which stays as it is; or a flag.
WORDS = re.compile(
    r"`[^`-][^`]*`|\b(?:train|play|mjfleet) \S+ --.*|--(?P<flag>[a-z][a-z0-9.-]*[a-z0-9])"
)


@contextmanager
def naming_fields(**names: str) -> Iterator[None]:
    """Have a UserError name fields: `agent.max_iterations` for `--agent.max-iterations`.

    `names` are those of arguments that are called otherwise than the flag: `output="path"`.
    """
    try:
        yield
    except UserError as error:
        error.args = (WORDS.sub(lambda found: _as_field(found, names), str(error)),)
        raise


def _as_field(found: re.Match[str], names: dict[str, str]) -> str:
    if (flag := found["flag"]) is None:
        return found[0]
    *groups, last = flag.replace("-", "_").split(".")
    name = ".".join([*groups, last.removeprefix("no_")])
    return names.get(name, name) + "=False" * last.startswith("no_")
