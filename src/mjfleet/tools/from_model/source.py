"""Reads the model of a robot, MJCF or URDF, and copies the files that it names."""

import codecs
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import mujoco

from mjfleet.errors import UserError
from mjfleet.tools.from_model.refusals import check_urdf, in_a_sentence
from mjfleet.tools.from_model.robot import Robot

ENCODING = re.compile(rb"""<\?xml[^>]*?\sencoding\s*=\s*["']([\w.-]+)""")
COMMENT = re.compile("<!--.*?-->", re.DOTALL)
PREFIX = re.compile(r"(</?\w+):")
"""The prefix of another program's tag, such as Gazebo's; files may leave it undeclared."""
INCLUDE = re.compile(r"""<(include|model)\s[^>]*?\bfile\s*=\s*["'](.+?)["']""")
AS_IT_IS = {"fusestatic": "false", "discardvisual": "false", "strippath": "false"}
"""With these, a URDF's feet keep their names, the root its inertia, and meshes their folders."""


def read_robot(file: Path, target: Path) -> Robot:
    """Read a model, and copy the meshes, textures and height fields that it names to `target`.

    Raises:
        UserError: the file, or one that it names, is not there or cannot be read.
    """
    if not file.is_file():
        raise UserError(f"--from is {str(file)!r}; there is no such file.")
    if file.suffix not in (".xml", ".urdf"):
        raise UserError(
            f"--from is {str(file)!r}; it must be MJCF (.xml) or URDF (.urdf), to which xacro "
            "turns its own files."
        )
    questions, warnings, is_fixed = list[str](), list[str](), False
    mujoco.set_mju_user_warning(warnings.append)
    try:
        if "<robot" in (text := _read(file)):
            urdf = ElementTree.fromstring(PREFIX.sub(r"\1.", text))
            check_urdf(urdf)
            mujoco.MjSpec.from_string(text)  # Refuses mistakes with the lines of the file.
            is_fixed = urdf.find("link[@name='world']") is not None
            if not is_fixed:
                questions += _stand_on_world(urdf)
            compiler = _child(_child(urdf, "mujoco"), "compiler")
            compiler.attrib.update(AS_IT_IS)
            spec = mujoco.MjSpec.from_string(ElementTree.tostring(urdf, encoding="unicode"))
            # What a fixed link does not weigh is no mass of its shape.
            spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
        else:
            spec = mujoco.MjSpec.from_file(str(file))
            _refuse_outside(file, file.parent.resolve())
    except (ValueError, ElementTree.ParseError) as error:
        raise UserError(f"{file}: {in_a_sentence(error)}") from None
    _copy_assets(spec, file, target)
    questions += [f"Is this meant? {' '.join(text.split())}" for text in warnings]
    return Robot(spec, questions, is_fixed)


def _read(file: Path, encoding: str = "") -> str:
    """Return a model without comments, in which MuJoCo, but not ElementTree, allows `--`.

    Its encoding is `encoding`, or else the one that its first line names, or else UTF-8.
    UserError if its text is not in that.
    """
    data = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    declared = ENCODING.match(data)
    encoding = encoding or (declared[1].decode() if declared else "UTF-8")
    try:
        text = data.decode(encoding)
    except (UnicodeError, LookupError):
        raise UserError(f"{file}: its text is not in {encoding}: save it in UTF-8.") from None
    return COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)


def _refuse_outside(file: Path, folder: Path) -> None:
    """Raise UserError if a model includes a file that is not in `folder`, or one that does."""
    for tag, name in INCLUDE.findall(_read(file, "UTF-8")):  # MuJoCo reads these as UTF-8, too.
        path = folder / name
        if not path.resolve().is_relative_to(folder):
            raise UserError(f"{file}: <{tag}>: {name!r} leaves {folder}.")
        if path.is_file():
            _refuse_outside(path, folder)


def _copy_assets(spec: mujoco.MjSpec, file: Path, target: Path) -> None:
    """Copy all files that a model names, in the same folders, and let it name the copies."""
    folder = file.parent.resolve()

    def copied(name: str, directory: str, where: str) -> str:
        """Return the path of the copy; nothing if no file is named."""
        if not name:
            return name
        found = _find(folder, name if ":" in name else f"{directory}/{name}")
        if not found:
            raise UserError(
                f"{file}: {where}: there is no file {name!r} in {folder}, which must hold all that "
                "the model names."
            )
        if len(found) > 1:
            files = ", ".join(str(path.relative_to(folder)) for path in found)
            raise UserError(
                f"{file}: {where}: {name!r} may be any of {files}; name it by its path in {folder}."
            )
        (path,) = found
        if not path.resolve().is_relative_to(folder):
            raise UserError(f"{file}: {where}: {name!r} leaves {folder}.")
        copy = target / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return str(copy)

    for asset in (*spec.meshes, *spec.hfields, *spec.skins):
        asset.file = copied(asset.file, asset.compiler.meshdir, asset.info or asset.name)
    for texture in spec.textures:
        where = texture.compiler.texturedir, texture.info
        texture.file = copied(texture.file, *where)
        for side, name in enumerate(texture.cubefiles):
            texture.cubefiles[side] = copied(name, *where)
    spec.meshdir = spec.texturedir = ""
    spec.strippath = False


def _find(folder: Path, file: str) -> list[Path]:
    """Return the files in a folder, or in the folders in it, that a model can mean by a path or the
    end of it, since packages and paths may be those of another machine."""
    parts = [part for part in re.sub(r"^\w+:/", "", file).split("/") if part not in ("", "..")]
    beside = sorted(path for path in folder.iterdir() if path.is_dir())
    ends = [Path(*parts[i:]) for i in range(len(parts))]
    found = ([place / end for place in places] for end in ends for places in ([folder], beside))
    files = ([path for path in paths if path.is_file()] for paths in found)
    return next(filter(None, files), [])


def _stand_on_world(urdf: Element) -> list[str]:
    """Let the world be a URDF's root if that is a frame below the base, such as base_footprint: a
    link without mass and shape that carries one fixed link. Return what to ask about it."""
    children = {child.get("link") for child in urdf.iterfind("joint/child")}
    link = next((link for link in urdf.iterfind("link") if link.get("name") not in children), None)
    frames = list[tuple[Element, Element]]()
    while link is not None and link.find("inertial") is None and link.find("collision") is None:
        joints = urdf.findall(f"joint/parent[@link='{link.get('name')}']/..")
        if [joint.get("type") for joint in joints] != ["fixed"]:
            break
        frames.append((link, joints[0]))
        link = urdf.find(f"link[@name='{_child(joints[0], 'child').get('link')}']")
    names = [frame.get("name") for frame, _ in frames]
    for element in (element for pair in frames[:-1] for element in pair):
        urdf.remove(element)
    for frame, joint in frames[-1:]:
        frame.set("name", "world")
        _child(joint, "parent").set("link", "world")
    return [f"Is the frame `{name}` needed? It is left out." for name in names]


def _child(element: Element, tag: str) -> Element:
    """Return the first child with a tag, a new one if there is none."""
    found = element.find(tag)
    return ElementTree.SubElement(element, tag) if found is None else found
