"""Reads the model of a robot, MJCF or URDF, and copies the files that it needs."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import mujoco

from mjfleet.errors import UserError

ASSETS = "assets"
"""Folder of the copied files, beside the copied model."""
MESHES = (".stl", ".obj", ".msh")
"""Kinds of meshes that MuJoCo reads."""
SCHEME = re.compile(r"^(package|file|model)://+")
MESH = re.compile(r"""(<(?:mesh|texture)\b[^>]*?\bfilename\s*=\s*)(["'])(.*?)\2""")


@dataclass
class Source:
    """A model as its file has it, with files copied."""

    spec: mujoco.MjSpec
    is_urdf: bool
    is_fixed: bool
    """Whether the file itself says that the robot is fixed to the world."""
    warnings: list[str] = field(default_factory=list)
    """What MuJoCo says of the file."""


class Copies:
    """Copies files from the folder of a model into another one, each once, under unique names."""

    def __init__(self, file: Path, target: Path) -> None:
        self._file, self._target = file, target
        self._folder = file.parent.resolve()
        self._names: dict[Path, str] = {}

    def find(self, value: str, where: str, places: Sequence[Path]) -> Path:
        """Return the first of some places that is a file; the model names it `value`.

        Raises:
            UserError: there is none, or it is outside of the model's folder.
        """
        path = next((place for place in places if place.is_file()), places[0]).resolve()
        if not path.is_relative_to(self._folder):
            raise UserError(
                f"{where}: {value!r} leaves {self._folder}, the folder of the model; put the model "
                "beside or above the files that it needs, and let it name them there."
            )
        if not path.is_file():
            raise UserError(f"{where}: there is no file {value!r} in {self._folder}.")
        return path

    def copy(self, path: Path, where: str, is_mesh: bool) -> str:
        """Copy a file; return its new name, relative to the copied model."""
        if is_mesh and path.suffix.lower() not in MESHES:
            raise UserError(
                f"{where}: MuJoCo cannot read the mesh {path.name!r}; convert it to "
                f"{', '.join(MESHES[:-1])} or {MESHES[-1]}."
            )
        if path not in self._names:
            taken, number = {*self._names.values()}, 2
            name = path.name
            while f"{ASSETS}/{name}" in taken:
                name, number = f"{path.stem}_{number}{path.suffix}", number + 1
            (self._target / ASSETS).mkdir(exist_ok=True)
            shutil.copyfile(path, self._target / ASSETS / name)
            self._names[path] = f"{ASSETS}/{name}"
        return self._names[path]


def read_source(file: Path, target: Path) -> Source:
    """Read a model, and copy its files into the folder `target`. The source is not changed.

    Raises:
        UserError: the file, or one that it needs, does not exist or cannot be used.
    """
    if not file.is_file():
        raise UserError(f"--from is {str(file)!r}; there is no such file.")
    warnings: list[str] = []
    mujoco.set_mju_user_warning(warnings.append)
    copies = Copies(file, target)
    try:
        text = file.read_text(encoding="utf-8-sig")
        root = ElementTree.fromstring(text)
        is_urdf = root.tag == "robot"
        if is_urdf:
            source = _read_urdf(file, text, copies)
        else:
            source = Source(_read_mjcf(file, copies), is_urdf=False, is_fixed=False)
        source.spec.modelfiledir = str(target)
        source.spec.compile()
    except (ValueError, ElementTree.ParseError) as error:
        raise UserError(f"{file}: {' '.join(str(error).split())}") from None
    source.warnings = list(dict.fromkeys(" ".join(text.split()) for text in warnings))
    return source


def _read_urdf(file: Path, text: str, copies: Copies) -> Source:
    """Read a URDF with its visual geoms, and with all of its links."""
    if "<xacro:" in text:
        raise UserError(f"{file}: this is xacro; let `xacro` make a URDF of it, and name that.")
    # Lines keep their numbers.
    text = re.sub("<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    folder = file.parent
    bases = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]

    def copied(found: re.Match[str]) -> str:
        value = SCHEME.sub("", found[3])
        where = f"{file}, line {text.count(chr(10), 0, found.start()) + 1}"
        names = [value]
        if value != found[3]:  # The first part is the name of a package, which may be the folder.
            names.append(value.partition("/")[2])
        if ".." not in Path(value).parts:
            names.append(Path(value).name)
        places = [base / name for name in names if name for base in bases]
        path = copies.find(found[3], where, places)
        return f'{found[1]}"{copies.copy(path, where, found[0].startswith("<mesh"))}"'

    is_fixed = re.search(r"""<link\s[^>]*name\s*=\s*["']world["']""", text) is not None
    text = MESH.sub(copied, text)
    flags = 'discardvisual="false" fusestatic="false" strippath="false" meshdir="" '
    known = re.compile(r"""\b(discardvisual|fusestatic|strippath|meshdir)\s*=\s*(["']).*?\2""")
    if "<compiler" in text:
        text = re.sub(r"<compiler\b[^>]*>", lambda found: known.sub("", found[0]), text)
        text = text.replace("<compiler", f"<compiler {flags}", 1)
    else:
        own = f"<mujoco><compiler {flags}/></mujoco>"
        text = re.sub(r"(<robot\b[^>]*>)", rf"\g<1>{own}", text, count=1)
    return Source(mujoco.MjSpec.from_string(text), is_urdf=True, is_fixed=is_fixed)


def _read_mjcf(file: Path, copies: Copies) -> mujoco.MjSpec:
    """Read an MJCF file; let it name the copies of its files."""
    found: dict[str, Path] = {}
    _look_through(file, file.parent, copies, found)
    spec = mujoco.MjSpec.from_file(str(file))
    for asset in (*spec.meshes, *spec.hfields, *spec.skins, *spec.textures):
        if not (value := asset.file):
            continue
        where = f"{file}, {type(asset).__name__[3:].lower()} {asset.name!r} ({asset.info})"
        if value not in found:
            raise UserError(f"{where}: there is no file {value!r} in {file.parent.resolve()}.")
        asset.file = copies.copy(found[value], where, isinstance(asset, mujoco.MjsMesh))
    for texture in spec.textures:
        texture.cubefiles = [
            copies.copy(found[value], texture.name, is_mesh=False) if value else ""
            for value in texture.cubefiles
        ]
    spec.meshdir = spec.texturedir = ""
    spec.strippath = False
    return spec


def _look_through(file: Path, base: Path, copies: Copies, found: dict[str, Path]) -> None:
    """Add the files that an MJCF file and those it includes name, by the values of attributes.

    Raises:
        UserError: one does not exist, or is outside of the model's folder.
    """
    text = file.read_text(encoding="utf-8-sig")
    root = ElementTree.fromstring(text)
    bases = [base, file.parent]
    for compiler in root.iter("compiler"):
        names = ("meshdir", "texturedir", "assetdir")
        bases = [*(base / compiler.get(name, "") for name in names), *bases]
    for element in root.iter():
        for attribute, value in element.attrib.items():
            if not attribute.startswith("file") or not value:
                continue
            line = text.count("\n", 0, max(0, text.find(f'"{value}"'))) + 1
            where = f"{file}, <{element.tag}> in line {line}"
            path = copies.find(value, where, [base / value for base in bases])
            is_new, found[value] = path not in found.values(), path
            if is_new and element.tag in ("include", "model"):
                deeper = base if element.tag == "include" else path.parent
                _look_through(path, deeper, copies, found)
