"""Reads the model of a robot, MJCF or URDF, from copies of all files that it names."""

import re
import shutil
from pathlib import Path

import mujoco

from mjfleet.errors import UserError

COMMENT = re.compile("<!--.*?-->", re.DOTALL)
ELEMENT = re.compile(r"<(mesh|texture|hfield|skin|include|model)\b[^>]*>")
FILE = re.compile(r"""\b(file\w*)\s*=\s*(["'])(.+?)\2""")
SETTING = re.compile(
    r"\b(meshdir|texturedir|assetdir|strippath|fusestatic|discardvisual)\s*=\s*[\"'](.*?)[\"']"
)
"""Where files are, which copies do not need, and what would take away links and shapes."""
OF_URDF = 'fusestatic="false" discardvisual="false" strippath="false"'
"""With these, feet keep their names, and the root its inertia."""
WORLD = re.compile(r"""<link\s[^>]*\bname\s*=\s*["']world["']""")
LINK = re.compile(r"""<link\s+name\s*=\s*["']([^"']+)["']\s*(?:/>|>.*?</link>)""", re.DOTALL)
JOINT = re.compile(r"""<joint\s[^>]*\btype\s*=\s*["'](\w+)["'][^>]*>(.*?)</joint>""", re.DOTALL)
OF_JOINT = re.compile(r"""<(parent|child)\s+link\s*=\s*["']([^"']+)["']""")


class Source:
    """A model, read from a copy of its file and of those that this names, in the same folders.

    Raises:
        UserError: a file does not exist, is outside of the model's folder, or cannot be used.
    """

    def __init__(self, file: Path, target: Path) -> None:
        if not file.is_file():
            raise UserError(f"--from is {str(file)!r}; there is no such file.")
        if file.suffix not in (".xml", ".urdf"):
            raise UserError(
                f"--from is {str(file)!r}; it must be MJCF (.xml) or URDF (.urdf), to which xacro "
                "turns its own files."
            )
        self._folder, self._target = file.parent.resolve(), target
        beside = sorted(path for path in self._folder.iterdir() if path.is_dir())
        self._places = [self._folder, *beside]
        """Where files are looked for."""
        self._models, self.questions, warnings = list[Path](), list[str](), list[str]()
        self.is_fixed = False
        """Whether the file fixes the robot to the world, as a URDF does by a link of that name."""
        mujoco.set_mju_user_warning(warnings.append)
        try:
            copy = target / self._copy(self._folder / file.name, is_model=True)
            self.spec = mujoco.MjSpec.from_file(str(copy))
        except ValueError as error:
            raise UserError(f"{file}: {' '.join(str(error).split())}") from None
        text = copy.read_text(encoding="utf-8")
        if "<robot" in text:  # What a fixed link does not weigh is no mass of its shape.
            self.spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
        self.questions += [f"Is this meant? {' '.join(text.split())}" for text in warnings]
        for copy in self._models:
            copy.unlink()

    def _copy(self, path: Path, is_model: bool) -> str:
        """Copy a file; return its name from the copied model."""
        name = path.relative_to(self._folder).as_posix()
        copy = self._target / name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            if is_model:
                self._models.append(copy)
                copy.write_text(self._rewritten(path), encoding="utf-8")
        return name

    def _rewritten(self, file: Path) -> str:
        """Return the text of a model that names copies, in the same lines."""
        text = file.read_text(encoding="utf-8-sig")
        text = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
        settings = [found for found in SETTING.finditer(text) if found[1].endswith("dir")]
        self._places[:0] = [self._folder / found[2] for found in settings]
        self._places.append(file.parent)
        text = SETTING.sub("", text)

        def copied(element: re.Match[str]) -> str:
            line = text.count("\n", 0, element.start()) + 1
            is_model = element[1] in ("include", "model")

            def renamed(found: re.Match[str]) -> str:
                path = self._find(found[3], f"{file}, <{element[1]}> in line {line}")
                return f'{found[1]}="{self._copy(path, is_model)}"'

            return FILE.sub(renamed, element[0])

        text = ELEMENT.sub(copied, text)
        if "<robot" not in text:
            return text
        if "<compiler" not in text:
            text = re.sub(r"(<robot\b[^>]*>)", r"\1<mujoco><compiler/></mujoco>", text, count=1)
        return self._on_base(text.replace("<compiler", f"<compiler {OF_URDF}", 1))

    def _on_base(self, text: str) -> str:
        """Return a URDF whose root is the robot's base: of frames below it, such as base_footprint,
        the last becomes the world, and others are removed."""
        self.is_fixed, name = WORLD.search(text) is not None, ""
        above = text
        while not self.is_fixed and (frame := _root_frame(above)):
            name, elements, text = frame[0], frame[1], above
            for element in elements:
                above = above.replace(element, "\n" * element.count("\n"), 1)
            self.questions.append(f"Is the frame `{name}` needed? It is left out.")
        of_frame = rf"""(<link\s+name|<parent\s+link)(\s*=\s*)["']{re.escape(name)}["']"""
        return re.sub(of_frame, r'\1\2"world"', text)

    def _find(self, value: str, where: str) -> Path:
        """Return the file that an element names by `value`: its whole path or, inside of the
        folder, the end of it, so that a package may have any name."""
        named = Path(re.sub(r"^(package|file|model)://+", "", value))
        parts = named.parts
        ends = [Path(*parts[i:]) for i in range(1 if ".." in parts else len(parts))]
        paths = [place / end for end in ends for place in self._places]
        path = next((path for path in paths if path.is_file()), self._folder / named).resolve()
        if not path.is_relative_to(self._folder):
            raise UserError(
                f"{where}: {value!r} leaves the folder of the model; put it beside its files."
            )
        if not path.is_file():
            raise UserError(f"{where}: there is no file {value!r} in {self._folder}.")
        return path


def _root_frame(text: str) -> tuple[str, tuple[str, str]] | None:
    """Return the name of a URDF's root if nothing is on it but one fixed link, and the elements of
    the root and of the joint."""
    joints = [(found, dict(OF_JOINT.findall(found[2]))) for found in JOINT.finditer(text)]
    children = {of.get("child") for _, of in joints}
    for link in LINK.finditer(text):
        on_it = [found for found, of in joints if of.get("parent") == link[1]]
        is_frame = "<collision" not in link[0] and "<inertial" not in link[0]
        if is_frame and link[1] not in children and [found[1] for found in on_it] == ["fixed"]:
            return link[1], (link[0], on_it[0][0])
    return None
