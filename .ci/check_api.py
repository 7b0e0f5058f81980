"""Compare the public API with that of the last release; exit with 1 if a break is not listed.

docs/versions.md says what is public. A break that is meant is listed in api_breaks.txt beside this
file, as it is printed here, until the release that has it; CHANGELOG.md tells users about it.
"""

import re
import subprocess
import sys
from pathlib import Path

import griffe

LEGGED = ("biped_env", "config", "mirror", "rough_env", "velocity_env")
TRACKING = ("config", "tracking_env")
MODULES = (
    *("mjfleet", "mjfleet.config", "mjfleet.env", "mjfleet.gym", "mjfleet.parts"),
    "mjfleet.terms",
    *(f"mjfleet.legged.{module}" for module in LEGGED),
    *(f"mjfleet.tracking.{module}" for module in TRACKING),
)
FIRST = "bc65c97"
"""What counts as the last release until there is a tag `v*`."""
LISTED = Path(__file__).with_name("api_breaks.txt")


def main() -> None:
    """Print the breaks that are not listed, and listed ones that are none."""
    tags = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    found = subprocess.run(tags, capture_output=True, text=True, check=False)
    last = found.stdout.strip() or FIRST
    old = griffe.load_git("mjfleet", ref=last, search_paths=["src"])
    new = griffe.load("mjfleet", search_paths=["src"])
    public = public_paths(old)
    lines = set()
    for breakage in griffe.find_breaking_changes(old, new):
        path = breakage.obj.path
        if any(path == one or path.startswith((f"{one}.", f"{one}(")) for one in public):
            text = breakage.explain(griffe.ExplanationStyle.ONE_LINE)
            lines.add(re.sub(r"\x1b\[\d+m|:\d+:", "", text))
    listed = {line for line in LISTED.read_text().splitlines() if not line.startswith("#")}
    wrong = [f"breaks the API of {last}: {line}" for line in sorted(lines - listed)]
    wrong += [f"{LISTED.name}: is no break: {line}" for line in sorted(listed - lines)]
    print(f"{len(public)} public names compared with {last}; breaks that are meant: {len(listed)}")
    sys.exit("\n".join(wrong) or 0)


def public_paths(package: griffe.Object) -> set[str]:
    """Return the paths of the public names, and of what they are imported from."""
    paths = set()
    for module in MODULES:
        try:
            inside = package[module.partition(".")[2]] if "." in module else package
        except KeyError:
            continue  # a release that did not have it yet
        names = inside.exports or [name for name, one in inside.members.items() if one.is_public]
        for name in map(str, names):
            one = inside[name]
            paths |= {f"{module}.{name}", one.final_target.path if one.is_alias else one.path}
    return paths


if __name__ == "__main__":
    main()
