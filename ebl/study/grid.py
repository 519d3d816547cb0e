"""What a study is: a name and its cells, read from a YAML file. The built-in ones are such files (`ebl/study/studies`).

description: beta and the number of free iterations
preset: quick                           # where settings start; without one ebl.Config's defaults, the paper's large network
set: {epochs: 10}                       # settings of every cell, by dotted key
grid:                                   # lists of values; they multiply, the first one varies slowest
  seed: [0, 1]
  rule: [cl, c-ep]
  beta: [0.1, 0.25]                     # rules without one of their own, as cl, count once
  free.iterations: [12, 20]
overrides:                              # for the cells that match: other settings, another row, or none of them
  - {match: {rule: c-ep, beta: 0.1}, set: {nudged.iterations: 12}}
  - {match: {rule: cl, seed: 1}, skip: true}
label: "T={free.iterations}"            # the row of the study's table, if it is not the rule
cells:                                  # blocks, each with all of the above and its own preset, set, grid, overrides, label
  - {label: small}
  - {label: large, set: {model.hidden: [32, 64]}}
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ebl.config import Config
from ebl.errors import InputError, choose
from ebl.presets import preset
from ebl.study.key import key_of
from ebl.study.settings import changed, check_key, check_value, checked, flat_config

BUILT_IN = ("quick", "table1", "table2", "table3", "table6")
_BLOCK = ("preset", "set", "grid", "overrides", "label")
_OVERRIDE = ("match", "set", "label", "skip")


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    config: Config
    template: str = ""  # of the row it belongs to, settings in braces; empty: the row is the rule's

    @property
    def key(self) -> str:
        return key_of(self.config)

    @property
    def label(self) -> str:
        return self.template.format(**vars(self.config))


@dataclass(frozen=True)
class Study:
    name: str
    description: str
    cells: tuple[Cell, ...]


def read_study(name: str | Path) -> Study:
    """A built-in study by name, or the user's by file."""
    text = str(name)
    if text in BUILT_IN:
        content = resources.files("ebl.study").joinpath("studies", f"{text}.yaml").read_text(encoding="utf-8")
        return parse_study(content, text, f"{text}.yaml")
    path = Path(text).expanduser()
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        try:
            choose("study", text, BUILT_IN)
        except InputError as error:
            raise InputError(f"{error}, or a file such as mine.yaml") from None
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"{path} cannot be read ({why}): give a study's YAML file, or one of {', '.join(BUILT_IN)}") from error
    return parse_study(content, path.stem, str(path))


def parse_study(text: str, name: str, where: str) -> Study:
    """The study a YAML text describes; `where` is what errors call it."""
    import yaml

    try:
        twice = _key_twice(yaml.compose(text, Loader=yaml.SafeLoader))
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1}: {getattr(error, 'problem', '')})" if mark is not None else ""
        raise InputError(f"{where} is no YAML{line}: see ebl/study/studies/quick.yaml for one") from error
    if twice:
        raise InputError(f"{where}: {twice} is there twice: give it once")
    if not isinstance(found, dict):
        raise InputError(f"{where} is no study: give keys such as preset and grid (see ebl/study/studies/quick.yaml)")
    for key in found:
        choose(f"{where}: key", str(key), ("name", "description", "cells", *_BLOCK))
    blocks = found.get("cells")
    if blocks is None and "grid" not in found:
        raise InputError(f"{where}: there is neither a grid nor cells; give a grid such as `seed: [0, 1, 2]`")
    if blocks is not None and not (isinstance(blocks, list) and blocks and all(isinstance(b, dict) for b in blocks)):
        raise InputError(f"{where}: cells = {blocks!r}: give a list of blocks, such as `- {{preset: quick}}`")
    cells: list[Cell] = []
    met: set[int] = set()
    for i, block in enumerate([{}] if blocks is None else blocks, 1):
        here = where if blocks is None else f"{where}: cells, block {i}"
        for key in block:
            choose(f"{here}: key", str(key), _BLOCK)
        merged = _merged(found, block, where)
        if not merged["grid"] and ("grid" in found or "grid" in block):
            raise InputError(f"{here}: grid is empty: give a list of values, such as seed: [0, 1]")
        cells += _expand(merged, here, met)
    for part in (found, *(blocks or ())):
        for override in part.get("overrides") or ():
            if id(override) not in met:
                raise InputError(f"{where}: overrides: no run matches {override['match']}: mend it, or leave the override out")
    title = str(found.get("name", name))
    if not re.fullmatch(r"\w[\w.-]*", title):
        raise InputError(f"{where}: name = {title!r}: use letters, digits, dots, dashes and underscores, as in my-study")
    if not cells:
        raise InputError(f"{where}: no cell is left: every one is skipped by an override")
    return Study(title, str(found.get("description", "")), distinct(cells))


def _key_twice(root: Any) -> str:
    """A key that a mapping of a YAML tree has twice, with its lines; empty if there is none."""
    import yaml

    seen: set[int] = set()
    left = [root]
    while left:
        node = left.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                left.append(value)
                if isinstance(key, yaml.ScalarNode):
                    line = key.start_mark.line + 1
                    if key.value in lines:
                        return f"{key.value} (lines {lines[key.value]} and {line})"
                    lines[key.value] = line
        else:
            left += node.value
    return ""


def distinct(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Without those that are the same run as an earlier one."""
    kept: dict[str, Cell] = {}
    for cell in cells:
        kept.setdefault(cell.key, cell)
    return tuple(kept.values())


def narrowed(cells: Sequence[Cell], key: str, values: Sequence[Any]) -> tuple[Cell, ...]:
    """The cells that have one of these values of a setting; a value that none has is tried on all of them."""
    if not values:
        return tuple(cells)
    has = [flat_config(cell.config)[key] for cell in cells]
    kept = [cell for cell, value in zip(cells, has, strict=True) if value in values]
    return distinct([*kept, *(c for value in values if value not in has for c in with_settings(cells, {key: value}))])


def with_settings(cells: Iterable[Cell], values: Mapping[str, Any]) -> tuple[Cell, ...]:
    """The cells with other settings."""
    return distinct(replace(cell, config=changed(cell.config, values)) for cell in cells)


def _merged(study: dict[str, Any], block: dict[str, Any], where: str) -> dict[str, Any]:
    """A block with what the study says for all: settings and lists add up, the block's count."""
    merged = {**{key: study[key] for key in _BLOCK if key in study}, **block}
    for one, other in ((study, study), (block, block), (block, study)):
        values, lists = one.get("set"), other.get("grid")
        if not isinstance(values, dict) or not isinstance(lists, dict):
            continue
        if both := [key for key in checked(values, f"{where}: set") if key in lists]:
            raise InputError(f"{where}: {both[0]} is both in set and in grid: give it once")
    for key, kind in (("set", dict), ("grid", dict), ("overrides", list)):
        parts = [part[key] for part in (study, block) if part.get(key) is not None]
        if not all(isinstance(part, kind) for part in parts):
            raise InputError(f"{where}: {key} = {parts[0]!r}: give {'`key: value` pairs' if kind is dict else 'a list'}")
        merged[key] = {k: v for part in parts for k, v in part.items()} if kind is dict else [o for part in parts for o in part]
    return merged


def _expand(block: dict[str, Any], where: str, met: set[int]) -> Iterator[Cell]:
    """The block's cells; the overrides that match one are added to `met`, by id."""
    base = Config()
    if block.get("preset") is not None:
        try:
            base = preset(str(block["preset"]))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    settings = checked(block["set"], f"{where}: set")
    axes: dict[str, list[Any]] = {}
    for key, values in block["grid"].items():
        check_key(key, f"{where}: grid")
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}: grid: {key} = {values!r}: give a list of at least one value, such as [{values or 0}]")
        axes[key] = [check_value(key, value, f"{where}: grid") for value in values]
    overrides = [_override(found, f"{where}: overrides, number {i}") for i, found in enumerate(block["overrides"], 1)]
    for values in itertools.product(*axes.values()):
        chosen = settings | dict(zip(axes, values, strict=True))
        yield from _cell(base, chosen, overrides, block.get("label"), where, met)


def _cell(
    base: Config, settings: dict[str, Any], overrides: list[dict[str, Any]], label: object, where: str, met: set[int]
) -> Iterator[Cell]:
    """The cell with these settings and what overrides make of it; none if one skips it."""
    known = flat_config(base) | settings
    skipped = False
    for override in overrides:
        if all(known[key] in values for key, values in override["match"].items()):
            met.add(override["id"])
            skipped = skipped or override["skip"]
            settings, label = settings | override["set"], override.get("label", label)
    if skipped:
        return
    try:
        yield Cell(changed(base, settings), _template(label))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _override(found: object, where: str) -> dict[str, Any]:
    if not isinstance(found, dict) or not isinstance(found.get("match"), dict):
        raise InputError(f"{where} = {found!r}: give `match: {{key: value}}` and `set: {{key: value}}`")
    for key in found:
        choose(f"{where}: key", str(key), _OVERRIDE)
    match = {}
    for key, value in found["match"].items():
        check_key(key, f"{where}: match")
        match[key] = [check_value(key, v, f"{where}: match") for v in (value if isinstance(value, list) else [value])]
    if not isinstance(found.get("skip", False), bool):
        raise InputError(f"{where}: skip = {found['skip']!r}: give true or false")
    if "label" not in found and not any(found.get(name) for name in ("set", "skip")):
        raise InputError(f"{where} changes nothing: give set, label or skip")
    return {"skip": False, **found, "match": match, "set": checked(found.get("set", {}), f"{where}: set"), "id": id(found)}


def _template(label: object) -> str:
    """The label, if what it has in braces are settings."""
    text = "" if label is None else str(label)
    try:
        for _, field, form, _ in string.Formatter().parse(text):
            if field is not None:
                check_key(field, f"label = {text!r}")
            if form and "{" in form:
                raise ValueError("braces within braces")
        text.format(**vars(Config()))
    except (ValueError, TypeError) as error:
        raise InputError(f"label = {text!r} ({error}): put settings in braces, such as {{epochs}} epochs") from None
    return text
