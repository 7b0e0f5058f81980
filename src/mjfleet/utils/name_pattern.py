"""Compiles the regular expressions by which tasks choose joints, bodies and geoms."""

import re

from mjfleet.errors import UserError


def name_pattern(text: str, what: str) -> re.Pattern[str]:
    """Return a compiled regular expression.

    Raises:
        UserError: it is none. `what` says in the message who has given it.
    """
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise UserError(f"{what}: {text!r} is no regular expression: {error}.") from None
