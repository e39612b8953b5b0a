"""The specification: found, loaded, linted and printed.

What is required lives in `specs/` as data. Beside a checkout that is the folder at its top; in an
installed package it is `kvproof/specs`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from kvproof.records import SPEC_VERSION, Capability, Level, Profile, Record, Requirement

PREFIX = "KVP-"
SEEN = re.compile(r"[\w.-]+/[\w.-]+(#\d+|: \S.*)")
WORD = re.compile(r"\b(MUST|SHOULD)\b")
CHAPTER = re.compile(r"(3\.2\.[1-7])?")
NAMES_OF = {
    "manager": ("manager", "pool"),
    "scheduler": ("scheduler", "manager"),
    "ranks": ("ranks",),
    "kernel": ("kernel",),
}
"""Profiles whose capabilities a subject of each may name."""

R = TypeVar("R", bound=Record)


class SpecError(ValueError):
    """The specification cannot be used; the message names the file and the id."""


@dataclass(frozen=True)
class Spec:
    """The loaded specification; `requirements` is sorted by id, the rest by order of the file."""

    requirements: Mapping[str, Requirement]
    capabilities: Mapping[str, Capability]
    profiles: Mapping[str, Profile]
    root: Path

    @property
    def areas(self) -> tuple[str, ...]:
        """Names of the areas, sorted."""
        return tuple(sorted({r.area for r in self.requirements.values()}))

    def area(self, name: str) -> tuple[Requirement, ...]:
        """Requirements of one area ("pool" or "POOL"), sorted by id.

        Raises:
            SpecError: no such area.
        """
        found = tuple(r for r in self.requirements.values() if r.area == name.upper())
        if not found:
            raise SpecError(f"no area {name!r}; there are: {', '.join(self.areas)}")
        return found

    def get(self, name: str) -> Requirement:
        """The requirement with this id, with or without "KVP-", in any case.

        Raises:
            SpecError: no such requirement; the message names near matches.
        """
        wanted = name.upper()
        if not wanted.startswith(PREFIX):
            wanted = PREFIX + wanted
        if wanted in self.requirements:
            return self.requirements[wanted]
        near = difflib.get_close_matches(wanted, list(self.requirements), n=3, cutoff=0.6)
        hint = f"near it: {', '.join(near)}" if near else f"areas: {', '.join(self.areas)}"
        raise SpecError(f"no requirement {name!r}; {hint}")

    def select(self, selection: str | None) -> tuple[Requirement, ...]:
        """Requirements of an id, an area, or all of them for None.

        Raises:
            SpecError: neither an id nor an area.
        """
        if selection is None:
            return tuple(self.requirements.values())
        if selection.upper() in self.areas:
            return self.area(selection)
        return (self.get(selection),)

    def judged(self, profile: str) -> tuple[Requirement, ...]:
        """Requirements that a profile is judged by, sorted by id.

        Raises:
            SpecError: no such profile.
        """
        if profile not in self.profiles:
            raise SpecError(f"no profile {profile!r}; there are: {', '.join(self.profiles)}")
        judges = set(self.profiles[profile].judges)
        return tuple(r for r in self.requirements.values() if r.area in judges or r.id in judges)

    def misnamed(self, names: Iterable[str], profile: str) -> str:
        """What is wrong with the capabilities that a subject of a profile names; "" if nothing."""
        own = [c for c in self.capabilities.values() if c.profile in NAMES_OF[profile]]
        known = {c.name for c in own}
        for name in sorted(set(names) - known):
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"near it: {', '.join(near)}; " if near else ""
            allowed = ", ".join(c.name for c in own if not c.attribute)
            return f"capability {name!r} is not known; {hint}allowed for a {profile}: {allowed}"
        return ""


# ---------------------------------------------------------------- finding and loading


def find() -> Path:
    """The specs folder: inside the installed package, or at the top of a checkout.

    Raises:
        SpecError: there is none.
    """
    package = Path(__file__).resolve().parent
    places = (package / "specs", package.parents[1] / "specs")
    for place in places:
        if (place / "capabilities.toml").is_file():
            return place
    raise SpecError(f"no specification found; looked for capabilities.toml in {places[0]} and {places[1]}")


def load(root: Path | None = None) -> Spec:
    """Read the specification from `root`, or from where it is found.

    Raises:
        SpecError: a file is missing or not TOML, a table is unknown or malformed, or an id or name
            comes twice. Contradictions between entries are for `lint`.
    """
    root = find() if root is None else root
    files = sorted((root / "requirements").glob("*.toml"))
    if not files:
        raise SpecError(f"{root / 'requirements'}: no requirement files")
    requirements: dict[str, Requirement] = {}
    for file in files:
        for entry in _tables(file, {"requirement"})["requirement"]:
            requirement = _record(Requirement, entry, file, "id")
            if requirement.id in requirements:
                raise SpecError(f"{file.name}: {requirement.id}: the id is used twice")
            if requirement.area.lower() != file.stem:
                raise SpecError(
                    f"{file.name}: {requirement.id}: belongs into {requirement.area.lower()}.toml"
                )
            requirements[requirement.id] = requirement
    file = root / "capabilities.toml"
    tables = _tables(file, {"profile", "capability"})
    capabilities: dict[str, Capability] = {}
    for entry in tables["capability"]:
        capability = _record(Capability, entry, file, "name")
        if capability.name in capabilities:
            raise SpecError(f"{file.name}: {capability.name}: the capability is defined twice")
        capabilities[capability.name] = capability
    profiles: dict[str, Profile] = {}
    for entry in tables["profile"]:
        profile = _record(Profile, entry, file, "name")
        if profile.name in profiles:
            raise SpecError(f"{file.name}: {profile.name}: the profile is defined twice")
        profiles[profile.name] = profile
    return Spec(
        MappingProxyType(dict(sorted(requirements.items()))),
        MappingProxyType(capabilities),
        MappingProxyType(profiles),
        root,
    )


def _tables(file: Path, names: set[str]) -> dict[str, list[dict[str, Any]]]:
    try:
        with file.open("rb") as stream:
            data = tomllib.load(stream)
    except OSError as error:
        raise SpecError(f"{file.name}: cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file.name}: not TOML: {error}") from error
    for name in set(data) - names:
        raise SpecError(f"{file.name}: unknown table {name!r}; allowed: {', '.join(sorted(names))}")
    for name in names:
        entries = data.setdefault(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SpecError(f"{file.name}: write {name} as [[{name}]]")
    return data


def _record(kind: type[R], entry: dict[str, Any], file: Path, key: str) -> R:
    # Texts are wrapped in the files; the line breaks mean nothing.
    flat = {k: " ".join(v.split()) if isinstance(v, str) else v for k, v in entry.items()}
    try:
        return kind.model_validate(flat)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        name = entry.get(key, f"entry without {key}")
        raise SpecError(f"{file.name}: {name}: {where}: {first['msg']}") from None


# ---------------------------------------------------------------- lint


def lint(spec: Spec, cited: Mapping[str, set[str]]) -> list[str]:
    """Contradictions in the specification and between it and its tests, one line each.

    Args:
        spec: the loaded specification.
        cited: requirement id -> names of the tests that cite it.
    """
    return [*_lint_requirements(spec), *_lint_capabilities(spec), *_lint_citations(spec, cited)]


def _lint_requirements(spec: Spec) -> Iterator[str]:
    titles: dict[str, str] = {}
    for key, r in spec.requirements.items():
        if key != r.id:
            yield f"{key}: the entry has another id, {r.id}"
        for field in ("title", "text", "why"):
            if not getattr(r, field).strip():
                yield f"{r.id}: {field} is empty"
        words = set(WORD.findall(r.text))
        if r.level not in words:
            yield f"{r.id}: level is {r.level}, but the text does not say {r.level}"
        if r.level is Level.SHOULD and Level.MUST in words:
            yield f"{r.id}: level is SHOULD, but the text says MUST"
        if r.title in titles:
            yield f"{r.id}: same title as {titles[r.title]}"
        titles[r.title] = r.id
        if not CHAPTER.fullmatch(r.chapter):
            yield f"{r.id}: chapter {r.chapter!r} is no section from 3.2.1 to 3.2.7"
        for place in r.seen:
            if not SEEN.fullmatch(place):
                yield f"{r.id}: seen {place!r} is neither owner/name#number nor owner/name: what was seen"
        for name in r.needs:
            if name not in spec.capabilities:
                yield f"{r.id}: needs an unknown capability {name!r}"
        if r.profile not in spec.profiles:
            yield f"{r.id}: unknown profile {r.profile!r}"
        elif r not in spec.judged(r.profile):
            yield f"{r.id}: profile {r.profile} does not judge it"


def _lint_capabilities(spec: Spec) -> Iterator[str]:
    needed = {name for r in spec.requirements.values() for name in r.needs}
    for c in spec.capabilities.values():
        if c.profile not in spec.profiles:
            yield f"capability {c.name}: unknown profile {c.profile!r}"
        if not c.text.strip():
            yield f"capability {c.name}: text is empty"
        if c.name not in needed and not c.members and not c.optional and not c.attribute:
            yield f"capability {c.name}: no requirement and no member of the contract uses it"
        if c.attribute and c.members:
            yield f"capability {c.name}: given by an attribute, so it cannot oblige members"
    for p in spec.profiles.values():
        for name in p.judges:
            if name not in spec.areas and name not in spec.requirements:
                yield f"profile {p.name}: judges an unknown area or requirement {name!r}"


def _lint_citations(spec: Spec, cited: Mapping[str, set[str]]) -> Iterator[str]:
    for name, tests in sorted(cited.items()):
        if name not in spec.requirements:
            yield f"{name}: no such requirement, cited by {', '.join(sorted(tests)) or 'nobody'}"
        elif spec.requirements[name].status == "planned" and tests:
            yield f"{name}: planned, but cited by {', '.join(sorted(tests))}; make it active"
    for r in spec.requirements.values():
        if r.status == "active" and not cited.get(r.id):
            yield f"{r.id}: active, but no test cites it"
        if (r.status == "report") != bool(r.tests):
            yield f"{r.id}: tests are named where the status is report, and only there"


# ---------------------------------------------------------------- printing


def markdown(spec: Spec, selection: str | None = None) -> str:
    """One requirement, one area, or the whole specification as a Markdown page.

    Raises:
        SpecError: `selection` is neither an id nor an area.
    """
    chosen = spec.select(selection)
    if selection is not None:
        title = [f"# {selection.upper()}", ""] if len(chosen) > 1 else []
        return "\n".join(title + _entries(chosen, 2 if title else 1)) + "\n"
    planned = sum(r.status == "planned" for r in chosen)
    lines = [
        f"# Specification {SPEC_VERSION}",
        "",
        f"{len(chosen)} requirements in {len(spec.areas)} areas, {planned} of them planned: "
        "stated, and not tested yet.",
        "",
        "## Profiles",
    ]
    for p in spec.profiles.values():
        optional = f" Optional: {_code(p.optional)}." if p.optional else ""
        lines += ["", f"### {p.name}", "", f"`{p.factory}`: {_code(p.members)}.{optional}", "", p.text]
        lines += ["", f"Judged by {', '.join(p.judges)}."]
    lines += [
        "",
        "## Capabilities",
        "",
        "| Name | Profile | Members | What it obliges |",
        "|---|---|---|---|",
    ]
    for c in spec.capabilities.values():
        members = f"attribute `{c.attribute}`" if c.attribute else _code(c.members)
        optional = f", optional {_code(c.optional)}" if c.optional else ""
        lines.append(f"| {c.name} | {c.profile} | {members}{optional} | {c.text} |")
    for area in spec.areas:
        lines += ["", f"## {area}", "", *_entries(spec.area(area), 3)]
    return "\n".join(lines) + "\n"


def _entries(chosen: tuple[Requirement, ...], depth: int) -> list[str]:
    lines: list[str] = []
    for r in chosen:
        facts = [r.level.value, r.profile, r.status]
        if r.tests:
            facts.append(f"held by {_code(r.tests)}")
        if r.needs:
            facts.append(f"needs {_code(r.needs)}")
        if r.chapter:
            facts.append(f"chapter {r.chapter}")
        lines += [
            f"{'#' * depth} {r.id}: {r.title}",
            "",
            ", ".join(facts),
            "",
            r.text,
            "",
            f"*Why:* {r.why}",
            "",
        ]
        if r.seen:
            lines += ["Seen in:", "", *(f"- {_link(name)}" for name in r.seen), ""]
        if r.fault:
            lines += [f"Its tests must kill: {r.fault}", ""]
    return lines[:-1]


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _link(seen: str) -> str:
    name, _, number = seen.partition("#")
    return f"[{seen}](https://github.com/{name}/issues/{number})" if number.isdigit() else seen
