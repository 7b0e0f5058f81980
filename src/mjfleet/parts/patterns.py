"""Names of a model's elements that regular expressions match. Runs in a worker."""

import re
from collections.abc import Callable

from mjfleet.errors import UserError


def matcher(expression: str, what: object) -> Callable[[str], object]:
    """Return a function that says whether an expression matches a whole name.

    Raises:
        UserError: it is no regular expression; the message begins with `what`.
    """
    try:
        return re.compile(expression).fullmatch
    except re.error as error:
        raise UserError(f"{what}: {expression!r} is no regular expression: {error}.") from None
