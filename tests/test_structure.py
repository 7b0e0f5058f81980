"""The layout of the package, and what none of its modules does to the process around it."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .conftest import REPOSITORY

SOURCE = REPOSITORY / "src/mjfleet"
MODULES = sorted(SOURCE.rglob("*.py"))
PATCHES = SOURCE / "launch/torchrunx_compat.py", SOURCE / "tools/play/web_guard.py"
"""The modules that change another package."""
SETTINGS = {"config", "backends"}
"""Where warp and torch keep their users' settings."""
IMPORTS = SOURCE / "utils/lasting_imports.py"
"""The module that may add to the import system and freeze the garbage collector."""
FORBIDDEN = {
    "sys.meta_path": "adds to the import system",
    "os.sched_yield": "spins",
    "torch.jit.trace": "traces by TorchScript",
    "gc.freeze": "freezes the garbage collector",
}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression that is such a name, else an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ""


def imported(tree: ast.Module) -> set[str]:
    """The names in a module that stand for other packages or for what is theirs."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("mjfleet"):
            if (node.module or "").partition(".")[0] in sys.stdlib_module_names:
                continue
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to or deletes."""
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            return found
        case ast.AugAssign(target=found) | ast.AnnAssign(target=found):
            return [found]
        case _:
            return []


def changes_to_others(tree: ast.Module) -> Iterator[str]:
    """Each place where a module changes another package, or the import system."""
    others = imported(tree) - sys.stdlib_module_names - {"self"}
    for node in ast.walk(tree):
        for target in targets(node):
            owner = target.value if isinstance(target, ast.Subscript) else target
            name = dotted(owner)
            if name.startswith("sys.modules") and "module_from_spec" not in ast.unparse(node):
                yield f"line {target.lineno}: replaces an entry of sys.modules"
            elif (
                isinstance(target, ast.Attribute)
                and name.partition(".")[0] in others
                and not SETTINGS & {*name.split(".")}
            ):
                yield f"line {target.lineno}: assigns to {name}"
        if isinstance(node, ast.Call):
            is_patch = isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr")
            if is_patch and dotted(node.args[0]).partition(".")[0] in others:
                yield f"line {node.lineno}: setattr on {dotted(node.args[0])}"
        if isinstance(node, ast.expr) and (name := dotted(node)) in FORBIDDEN:
            yield f"line {node.lineno}: {name} {FORBIDDEN[name]}"
        if isinstance(node, ast.Attribute) and node.attr in ("SCHED_FIFO", "SCHED_RR"):
            yield f"line {node.lineno}: {node.attr} raises a thread's priority"


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    """Each module of the package, with what it consists of."""
    return [(path, ast.parse(path.read_text())) for path in MODULES]


def test_no_module_changes_another_package() -> None:
    allowed = {*PATCHES, IMPORTS}
    changes = {path: list(changes_to_others(tree)) for path, tree in trees() if path not in allowed}
    assert not {path: found for path, found in changes.items() if found}


def test_the_search_for_changes_finds_each_kind() -> None:
    code = (
        "import sys, os, torch\nfrom torch import nn\n"
        "sys.modules['wandb'] = None\ntorch.compile = None\nsetattr(nn, 'ELU', None)\n"
        "del sys.modules['wandb']\nos.sched_yield()\n"
    )
    assert len(list(changes_to_others(ast.parse(code)))) == 5
    assert not list(changes_to_others(ast.parse("import os\nos.environ['A'] = '1'\n")))


def test_each_module_says_what_it_is_for_and_is_short_enough_to_read() -> None:
    assert not [path for path, tree in trees() if not ast.get_docstring(tree)]
    assert not [path for path in MODULES if path.read_text().count("\n") > 350]


def test_each_folder_is_a_package() -> None:
    folders = {module.parent for module in MODULES if module.parent.name != "task_template"}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_children_import_nothing_from_the_current_directory() -> None:
    for path, tree in trees():
        for node in ast.walk(tree):
            elements = node.elts if isinstance(node, ast.List | ast.Tuple) else []
            if elements and dotted(elements[0]) == "sys.executable":
                assert ast.unparse(elements[1]) == "'-P'", path
