"""Reads YAML as plain data of a sane size. Imported where a file is read: PyYAML takes a while."""

from typing import Any, ClassVar

import yaml

from mjfleet.utils.safe_read import check_values

MAX_NUMBER = 100  # Characters; Python takes long to convert more.
STRING, DATE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"


def load_yaml(data: bytes) -> Any:
    """Return what a YAML document holds: mappings, lists, text, numbers, true, false, null.

    Raises:
        ValueError: it is not YAML, has tags or aliases or a key twice, or is nested too deeply.
    """
    try:
        value = yaml.load(data, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"not YAML: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_values(value)
    return value


class _Loader(yaml.SafeLoader):
    """Refuses what makes a small file large, and a key that would hide another one.

    A date is text: no value of a configuration is a date.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in some if tag != DATE]
        for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
            raise _refused("aliases and tags are not read", event)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if node.tag != STRING and len(value) > MAX_NUMBER:
            raise _refused("a number is too long", node)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise _refused("a key is there twice", node)
        return mapping


def _refused(why: str, place: Any) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=why, problem_mark=place.start_mark)
