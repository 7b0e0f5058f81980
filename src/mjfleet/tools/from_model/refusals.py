"""Makes what MuJoCo refuses one sentence that names the body and the element."""

import re
from collections import Counter
from xml.etree.ElementTree import Element

import mujoco

BY_NAME = re.compile(r"Element name '(?P<name>.*)', id (?P<id>\d+)")
BY_TAG = re.compile(r"Element '(?P<tag>.*?)'")
LINE = re.compile(r", line \d+")
LISTS = {
    "body": "bodies", "joint": "joints", "geom": "geoms", "site": "sites", "mesh": "meshes",
    "actuator": "actuators", "equality": "equalities", "tendon": "tendons", "sensor": "sensors",
    "key": "keys",
}  # fmt: skip
"""Where a spec holds elements, by kind. MuJoCo's messages say name and number, few the kind."""


def in_a_sentence(error: Exception, spec: mujoco.MjSpec | None = None) -> str:
    """Return the message of an exception in a line; for MuJoCo's about an element, name that.

    `spec` is what was compiled.
    """
    reason, _, where = str(error).strip().partition("\nElement")
    reason, where = re.sub(r"^(\w+ )?(Error: )+", "", " ".join(reason.split())), f"Element{where}"
    line = found[0] if (found := LINE.search(where)) else ""
    if (match := BY_NAME.search(where)) and spec is not None:
        what = _describe(spec, match["name"], int(match["id"]), reason)
        if "mjMINVAL" in reason:
            reason = "it moves, and needs a mass and an inertia above 0, as <inertial> gives them"
        return f"{what}{line}: {reason}"
    if match := BY_TAG.search(where):
        return f"<{match['tag']}>{line}: {reason}"
    return reason


def _describe(spec: mujoco.MjSpec, name: str, number: int, reason: str) -> str:
    """Return the kind and name of an element, with the body that holds it."""
    found = {kind: list(getattr(spec, elements))[number:] for kind, elements in LISTS.items()}
    fits = [kind for kind in LISTS if found[kind] and found[kind][0].name == name]
    if not fits:
        return f"`{name}`"
    kind = next((kind for kind in fits if kind in reason), fits[0])
    what = f"the {kind} `{name}`" if name else f"{kind} {number}"
    body = None if kind == "body" else getattr(found[kind][0], "parent", None)
    return f"{what} of the body `{body.name}`" if body else what


def check_urdf(urdf: Element) -> None:
    """Raise ValueError for what MuJoCo refuses in a URDF without a name, or does not see."""
    links = [link.get("name") for link in urdf.iterfind("link")]
    joints = [joint.get("name") for joint in urdf.iterfind("joint")]
    for kind, names in (("link", links), ("joint", joints)):
        for name, count in Counter(names).items():
            if count > 1:
                raise ValueError(f"there are {count} {kind}s named `{name}`.")
    for joint in urdf.iterfind("joint"):
        what = f"the joint `{joint.get('name')}`"
        for end in ("parent", "child"):
            for link in (found.get("link") for found in joint.iterfind(end)):
                if link not in links:
                    raise ValueError(f"{what}: its {end} is the link `{link}`, which is not there.")
        if (mimic := joint.find("mimic")) is not None and mimic.get("joint") not in joints:
            raise ValueError(f"{what} mimics the joint `{mimic.get('joint')}`, which is not there.")
