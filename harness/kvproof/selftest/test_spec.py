"""The specification is whole, and its lint finds what is broken."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from kvproof import contract, schemas, spec
from kvproof.records import Capability, Requirement
from kvproof.spec import Spec, SpecError


@pytest.fixture(scope="module")
def loaded() -> Spec:
    return spec.load()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A specification to break."""
    return Path(shutil.copytree(spec.find(), tmp_path / "specs"))


def all_cited(loaded: Spec) -> dict[str, set[str]]:
    return {r.id: {"test"} for r in loaded.requirements.values() if r.status == "active"}


def changed(loaded: Spec, name: str, **fields: object) -> Spec:
    old = loaded.requirements[name]
    new = Requirement.model_validate({**old.model_dump(), **fields})
    return replace(loaded, requirements={**loaded.requirements, name: new})


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


# ---------------------------------------------------------------- the specification itself


def test_the_specification_is_clean(loaded: Spec) -> None:
    assert spec.lint(loaded, all_cited(loaded)) == []


def test_ids_of_an_area_have_no_holes(loaded: Spec) -> None:
    for area in loaded.areas:
        numbers = [int(r.id.split("-")[2]) for r in loaded.area(area)]
        assert numbers == list(range(1, len(numbers) + 1)), area


def test_every_requirement_has_a_fault_or_its_own_check(loaded: Spec) -> None:
    without = [r.id for r in loaded.requirements.values() if not r.fault]
    assert without == ["KVP-SELF-001"]


def test_manager_capabilities_name_members_of_the_contract(loaded: Spec) -> None:
    known = {name for p in (contract.Manager, contract.ManagerOptions) for name in vars(p)}
    attributes = contract.ManagerOptions.__doc__ or ""
    for c in loaded.capabilities.values():
        if c.profile == "manager":
            for name in (*c.members, *c.optional):
                assert name in known or f"{name}:" in attributes, (c.name, name)
            if c.attribute:
                assert f"{c.attribute.split('.')[0]}:" in attributes, c.name
    assert set(loaded.profiles["manager"].members) <= known


def test_every_optional_member_belongs_to_a_capability(loaded: Spec) -> None:
    offered = {n for c in loaded.capabilities.values() for n in (*c.members, *c.optional)}
    members = {name for name in vars(contract.ManagerOptions) if not name.startswith("_")}
    assert members <= offered


def test_wrapped_texts_are_one_line(loaded: Spec) -> None:
    assert not [r.id for r in loaded.requirements.values() if "\n" in r.text or "  " in r.text]


def test_nothing_is_planned_only_and_what_binds_reports_names_tests_there_are(loaded: Spec) -> None:
    assert not [r.id for r in loaded.requirements.values() if r.status == "planned"]
    reports = [r for r in loaded.requirements.values() if r.status == "report"]
    assert {r.area for r in reports} == {"METRIC"}
    for name in (name for r in reports for name in r.tests):
        file, test = name.split("::")
        assert f"\ndef {test}(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), name


def test_lint_finds_a_report_without_tests(loaded: Spec) -> None:
    broken = changed(loaded, "KVP-METRIC-001", tests=())
    assert spec.lint(broken, all_cited(broken)) == [
        "KVP-METRIC-001: tests are named where the status is report, and only there"
    ]


# ---------------------------------------------------------------- access


@pytest.mark.parametrize("name", ["POOL-001", "KVP-POOL-001", "kvp-pool-001", "pool-001"])
def test_get_takes_any_form_of_an_id(loaded: Spec, name: str) -> None:
    assert loaded.get(name).id == "KVP-POOL-001"


def test_get_names_near_matches(loaded: Spec) -> None:
    with pytest.raises(SpecError, match=r"POOL-0001.*KVP-POOL-001"):
        loaded.get("POOL-0001")


def test_unknown_area_and_profile_say_what_there_is(loaded: Spec) -> None:
    with pytest.raises(SpecError, match=r"'nope'.*BATCH"):
        loaded.area("nope")
    with pytest.raises(SpecError, match=r"'nope'.*manager"):
        loaded.judged("nope")


def test_pool_profile_judges_single_requirements(loaded: Spec) -> None:
    ids = {r.id for r in loaded.judged("pool")}
    assert "KVP-FREE-003" in ids
    assert "KVP-FREE-004" not in ids


def test_the_index_cannot_be_changed(loaded: Spec) -> None:
    with pytest.raises(TypeError):
        loaded.requirements["KVP-X-001"] = loaded.get("POOL-001")  # type: ignore[index]


# ---------------------------------------------------------------- broken files


def test_duplicate_id_is_refused(copy: Path) -> None:
    edit(copy / "requirements/pool.toml", '"KVP-POOL-002"', '"KVP-POOL-001"')
    with pytest.raises(SpecError, match=r"pool\.toml: KVP-POOL-001: the id is used twice"):
        spec.load(copy)


def test_requirement_in_the_wrong_file_is_refused(copy: Path) -> None:
    edit(copy / "requirements/pool.toml", '"KVP-POOL-008"', '"KVP-FREE-008"')
    with pytest.raises(SpecError, match=r"pool\.toml: KVP-FREE-008: belongs into free\.toml"):
        spec.load(copy)


def test_unknown_field_and_bad_id_name_file_and_id(copy: Path) -> None:
    edit(copy / "requirements/slot.toml", "profile =", 'colour = "red"\nprofile =')
    with pytest.raises(SpecError, match=r"slot\.toml: KVP-SLOT-001: colour"):
        spec.load(copy)
    edit(copy / "requirements/slot.toml", 'colour = "red"\n', "")
    edit(copy / "requirements/slot.toml", "KVP-SLOT-001", "SLOT-1")
    with pytest.raises(SpecError, match=r"slot\.toml: SLOT-1: id"):
        spec.load(copy)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("requirement = 1", r"slot\.toml: write requirement as \[\[requirement\]\]"),
        ("[[requirements]]", r"slot\.toml: unknown table 'requirements'"),
        ("= 3", r"slot\.toml: not TOML"),
    ],
)
def test_malformed_files_are_refused(copy: Path, text: str, message: str) -> None:
    (copy / "requirements/slot.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=message):
        spec.load(copy)


def test_capability_defined_twice_is_refused(copy: Path) -> None:
    edit(copy / "capabilities.toml", 'name = "fork"', 'name = "keys"')
    with pytest.raises(SpecError, match=r"capabilities\.toml: keys: the capability is defined twice"):
        spec.load(copy)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no requirement files"):
        spec.load(tmp_path)


# ---------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"needs": ("teleport",)}, "needs an unknown capability 'teleport'"),
        ({"text": "Blocks are nice."}, "does not say MUST"),
        ({"text": " "}, "text is empty"),
        ({"why": ""}, "why is empty"),
        ({"level": "SHOULD"}, "does not say SHOULD"),
        ({"level": "SHOULD", "text": "It SHOULD, and it MUST."}, "the text says MUST"),
        ({"profile": "kernel"}, "profile kernel does not judge it"),
        ({"profile": "nobody"}, "unknown profile 'nobody'"),
        ({"chapter": "3.2.9"}, "chapter '3.2.9' is no section"),
        ({"seen": ("somewhere",)}, "seen 'somewhere' is neither"),
        ({"title": "No block is free and held at once"}, "same title as KVP-POOL-001"),
    ],
)
def test_lint_finds_a_broken_requirement(loaded: Spec, fields: dict[str, object], message: str) -> None:
    broken = changed(loaded, "KVP-POOL-001", **fields)
    if "title" in fields:
        message = "KVP-POOL-002: same title as KVP-POOL-001"
    assert any(message in line for line in spec.lint(broken, all_cited(loaded)))


def test_lint_finds_an_uncited_requirement(loaded: Spec) -> None:
    cited = all_cited(loaded)
    cited["KVP-POOL-001"] = set()
    del cited["KVP-POOL-002"]
    assert spec.lint(loaded, cited) == [
        "KVP-POOL-001: active, but no test cites it",
        "KVP-POOL-002: active, but no test cites it",
    ]


def test_lint_finds_a_citation_of_nothing(loaded: Spec) -> None:
    cited = {**all_cited(loaded), "KVP-POOL-999": {"test_b", "test_a"}}
    assert spec.lint(loaded, cited) == ["KVP-POOL-999: no such requirement, cited by test_a, test_b"]


def test_lint_finds_a_cited_planned_requirement(loaded: Spec) -> None:
    broken = changed(loaded, "KVP-METRIC-001", status="planned", tests=())
    cited = {**all_cited(broken), "KVP-METRIC-001": {"test_capacity"}}
    assert spec.lint(broken, cited) == ["KVP-METRIC-001: planned, but cited by test_capacity; make it active"]


def test_lint_finds_a_capability_that_nothing_uses(loaded: Spec) -> None:
    idle = Capability(name="idle", profile="manager", text="Nothing.")
    broken = replace(loaded, capabilities={**loaded.capabilities, "idle": idle})
    lines = spec.lint(broken, all_cited(loaded))
    assert lines == ["capability idle: no requirement and no member of the contract uses it"]


def test_lint_finds_a_profile_that_judges_nothing(loaded: Spec) -> None:
    pool = loaded.profiles["pool"].model_copy(update={"judges": ("KVP-POOL-099",)})
    broken = replace(loaded, profiles={**loaded.profiles, "pool": pool})
    lines = spec.lint(broken, all_cited(loaded))
    assert lines == ["profile pool: judges an unknown area or requirement 'KVP-POOL-099'"]


# ---------------------------------------------------------------- pages and schemas


def test_markdown_of_one_of_an_area_and_of_all(loaded: Spec) -> None:
    one = spec.markdown(loaded, "SHARE-002")
    assert one.startswith("# KVP-SHARE-002: ")
    assert loaded.get("SHARE-002").text in one
    area = spec.markdown(loaded, "share")
    assert area.startswith("# SHARE\n")
    assert [line for line in area.splitlines() if line.startswith("## ")] == [
        f"## {r.id}: {r.title}" for r in loaded.area("SHARE")
    ]
    page = spec.markdown(loaded)
    assert all(f"### {r.id}: " in page for r in loaded.requirements.values())
    assert all(f"| {name} |" in page for name in loaded.capabilities)
    with pytest.raises(SpecError):
        spec.markdown(loaded, "SHARE-9")


def test_markdown_table_rows_have_four_cells(loaded: Spec) -> None:
    rows = [line for line in spec.markdown(loaded).splitlines() if line.startswith("| ")]
    assert {row.count("|") for row in rows} == {5}


def test_committed_schemas_are_those_of_the_records() -> None:
    assert schemas.stale() == []


def test_stale_names_missing_changed_and_surplus_schemas(tmp_path: Path) -> None:
    schemas.write(tmp_path)
    assert schemas.stale(tmp_path) == []
    (tmp_path / "case.json").unlink()
    edit(tmp_path / "requirement.json", '"level"', '"height"')
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    found = [line.split(":")[0] for line in schemas.stale(tmp_path)]
    assert found == ["schemas/requirement.json", "schemas/case.json", "schemas/other.json"]


def test_every_requirement_file_fits_its_schema() -> None:
    root = spec.find()
    schema = json.loads((root / "schemas/requirement.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    files = sorted((root / "requirements").glob("*.toml"))
    assert files
    for file in files:
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["requirement"]:
            validator.validate(entry)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"id": "POOL-1"})
