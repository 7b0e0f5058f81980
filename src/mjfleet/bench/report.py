"""`mjfleet bench report`: a page of all results in a folder. Runs in the launching process."""

import shutil
from pathlib import Path

from mjfleet.bench.result import Result
from mjfleet.errors import UserError
from mjfleet.utils.atomic_write import write_atomically

INTRODUCTION = """# Benchmarks

Made by `mjfleet bench report` from what the commands below have measured; each can be repeated
anywhere. Machines are noisy: everything is measured several times, in turn with what it is compared
with, and given as the median and, in brackets, the least and the greatest.
"""


def page(folder: Path, plots: str) -> str:
    """All results of a folder as Markdown, those of each machine together.

    Args:
        folder: where `mjfleet bench` has written.
        plots: the folder of the plots as seen from the page.

    Raises:
        UserError: there are no results, or a file is none.
    """
    results = read_results(folder)
    machines: dict[str, list[Result]] = {}
    for result in results:
        facts = "\n".join(f"- {name}: {value}" for name, value in result.machine.items())
        machines.setdefault(facts, []).append(result)
    parts = [INTRODUCTION]
    for facts, here in machines.items():
        where = here[0].machine
        parts.append(f"## On {where.get('GPU') or where.get('CPU', 'a machine')}\n\n{facts}\n")
        for result in here:
            versions = ", ".join(f"{name} {value}" for name, value in result.versions.items())
            parts.append(f"#{result.markdown(plots)}\nTaken {result.taken[:10]} with {versions}.\n")
    return "\n".join(parts)


def read_results(folder: Path) -> list[Result]:
    """The results in a folder, by name.

    Raises:
        UserError: there are none, or a file is something else.
    """
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            results.append(Result.read(path))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no result of `mjfleet bench`: {error}") from None
    if not results:
        raise UserError(f"{folder} holds no results of `mjfleet bench`.")
    return results


def write_page(folder: Path, output: Path) -> None:
    """Write the page, and copy the plots into `images/` beside it."""
    text = page(folder, "images/")
    images = output.parent / "images"
    for result in read_results(folder):
        for plot in result.plots:
            images.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / plot, images / plot)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, lambda file: file.write(text.encode()))
