"""Writes the pages: templates and assets lie beside this file, and nothing is loaded from a network."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof.records import Sample, Verdict
from kvproof.report import history
from kvproof.report.site import plots
from kvproof.report.site.failures import shares, shown
from kvproof.report.site.gather import Judgement, Rule, Site, gather
from kvproof.report.site.pairs import compared
from kvproof.report.summary import BAD

HERE = Path(__file__).parent
PAGES = (
    ("index", "Overview"),
    ("requirements", "Requirements"),
    ("bench", "Benchmarks"),
    ("compare", "Compare"),
    ("history", "History"),
)
NEEDS = ("jinja2",)
"""Without altair there are no charts, without vl_convert none are drawn."""


def missing() -> list[str]:
    """Packages without which there is no site."""
    return [name for name in NEEDS if importlib.util.find_spec(name) is None]


def build(paths: Sequence[Path], folder: Path) -> Path:
    """Write the site of some result files into `folder`; returns its first page.

    A site that is there already is replaced; a folder that holds anything else is refused.

    Raises:
        ValueError: no file can be used, or the folder is not a site's.
    """
    site = gather(paths)
    if not site.files:
        why = f": {'; '.join(site.skipped)}" if site.skipped else ""
        raise ValueError(f"no complete result file among the {len(paths)} given{why}")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "assets" / "site.css").is_file():
            raise ValueError(f"{folder} holds something else than a site; name a new folder")
        shutil.rmtree(folder)
    _Writer(site, folder).write()
    return folder / "index.html"


@dataclass
class _Counts:
    good: int = 0
    bad: int = 0


@dataclass
class _Writer:
    site: Site
    folder: Path
    templates: Any = field(init=False)

    def __post_init__(self) -> None:
        jinja2: Any = importlib.import_module("jinja2")
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        markup: Any = importlib.import_module("markupsafe")
        safe, escape = markup.Markup, markup.escape
        self.templates.filters |= {
            "script": lambda text: safe(text.replace("</", "<\\/")),
            "source": source,
            "short": short,
            "notes": notes,
            "coded": lambda text: safe(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
        }
        newest = self.site.files[-1].header
        self.templates.globals |= {
            "site": self.site,
            "pages": PAGES,
            "footer": f"kvproof {newest.environment.kvproof}, specification {newest.spec}; "
            f"{len(self.site.files)} result files, the newest of {newest.started}",
        }

    def write(self) -> None:
        site = self.site
        for name in ("assets", "requirements", "implementations", "bench"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._assets()  # first: they tell a site, also one that was not written to its end
        points = sum(len(c.samples) for c in site.cells)
        failing = [j for j in site.judged if j.failed]
        self._page("index.html", "index.html", here="index", points=points, failing=failing)
        kinds = list(dict.fromkeys(r.requirement.profile for r in site.rules.values()))
        counts = {key: _counts(site.judged, key) for key in site.rules}
        holders = {key: _holders(site.judged, key) for key in site.rules}
        self._page("requirements.html", "requirements.html", here="requirements", kinds=kinds, counts=counts)
        for key, rule in site.rules.items():
            path = f"requirements/{key.lower()}.html"
            self._page(path, "requirement.html", rule=rule, verdicts=_verdicts(site.judged, rule))
        share = shares([len(j.summary.failures) + len(j.summary.known) for j in site.judged])
        for j in site.judged:
            failures = shown(j.summary, *share)
            path = f"implementations/{j.slug}.html"
            ids = [g.failure.requirement for g in failures]
            rows = {r.id: [g for g in failures if g.failure.requirement is r and not g.whole] for r in ids}
            values: dict[str, Any] = {
                "failures": failures,
                "rows": {key: found for key, found in rows.items() if found},
                "first": {r.area: r.id for r in reversed(ids)}.values(),
                "margins": j.summary.margins(),
                "holders": holders,
            }
            self._page(path, "implementation.html", j=j, **values)
        headers = [f.header for f in reversed(site.files) if f.header.what == "bench"]
        over_time = plots.over_time(site.series)
        self._page(
            "bench.html", "bench.html", here="bench", points=points, headers=headers, over_time=over_time
        )
        for cell in site.cells:
            parameters = list(dict.fromkeys(p for s in cell.samples for p in s.parameters))
            self._page(
                f"bench/{cell.slug}.html", "cell.html", cell=cell, found=plots.of(cell), parameters=parameters
            )
        self._page("compare.html", "compare.html", here="compare")
        found, changes = plots.of_past(site.past), history.changes(site.past)
        self._page("history.html", "history.html", here="history", found=found, changes=changes)

    def _page(self, path: str, template: str, here: str = "", **values: Any) -> None:
        root = "../" * path.count("/")
        html = self.templates.get_template(template).render(root=root, here=here, **values)
        (self.folder / path).write_text(html, encoding="utf-8")

    def _assets(self) -> None:
        for name in ("site.css", "site.js"):
            shutil.copyfile(HERE / "assets" / name, self.folder / "assets" / name)
        self._script("index.js", "KVPROOF_INDEX", _index(self.site))
        runs = {"runs": [_run(f) for f in self.site.files], "times": compared(self.site.files)}
        self._script("compare.js", "KVPROOF_COMPARE", runs)
        if importlib.util.find_spec("vl_convert") is not None:
            vega = importlib.import_module("vl_convert").javascript_bundle() + _READY
            (self.folder / "assets" / "vega.js").write_text(vega, encoding="utf-8")

    def _script(self, file: str, name: str, value: Any) -> None:
        text = f"window.{name}={json.dumps(value, separators=(',', ':'))};\n"
        (self.folder / "assets" / file).write_text(text, encoding="utf-8")


_READY = "\nwindow.dispatchEvent(new Event('vega'));\n"


def source(where: str) -> str:
    """The public page of "owner/name#number" or "owner/name: what"; "" for anything else."""
    found = re.match(r"([\w.-]+/[\w.-]+)(?:#(\d+)|:|$)", where)
    if not found:
        return ""
    number = f"/issues/{found[2]}" if found[2] else ""
    return f"https://github.com/{found[1]}{number}"


def short(x: float) -> str:
    """Three figures, thousands set apart."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def notes(sample: Sample) -> str:
    """The note and the counters that the table has no column for."""
    shown = [
        f"{k.replace('_', ' ')} {short(v)}" for k, v in sample.counters.items() if not k.startswith("ratio")
    ]
    return "; ".join([*([sample.note] if sample.note else []), *shown])


def _counts(judged: Sequence[Judgement], requirement: str) -> _Counts:
    found = Counter(j.summary.verdicts.get(requirement) for j in judged)
    return _Counts(found[Verdict.PASS], sum(found[v] for v in BAD))


def _holders(judged: Sequence[Judgement], requirement: str) -> list[Judgement]:
    """Those in which a requirement holds, the one in which most does first: what one may look at."""
    found = [j for j in judged if j.summary.verdicts.get(requirement) is Verdict.PASS]
    return sorted(found, key=lambda j: -sum(v is Verdict.PASS for v in j.summary.verdicts.values()))


def _verdicts(judged: Sequence[Judgement], rule: Rule) -> list[tuple[Judgement, Verdict, str]]:
    """(who, verdict, what was seen), the failing ones first."""
    key, rows = rule.requirement.id, []
    for j in judged:
        if key in j.summary.verdicts:
            failure = j.failures.get(key)
            text = j.why.get(key, "") if failure is None else failure.result.got or failure.result.reason
            rows.append((j, j.summary.verdicts[key], text))
    return sorted(rows, key=lambda row: (row[1] not in BAD, row[0].name))


def _index(site: Site) -> list[tuple[str, str, str]]:
    found = [(j.name, j.profile, f"implementations/{j.slug}.html") for j in site.judged]
    found += [
        (key, rule.requirement.title, f"requirements/{key.lower()}.html") for key, rule in site.rules.items()
    ]
    return found + [(c.name, "benchmark", f"bench/{c.slug}.html") for c in site.cells]


def _run(file: Any) -> dict[str, Any]:
    """A file as the compare page needs it: verdicts by requirement; times are compared beforehand."""
    h = file.header
    run: dict[str, Any] = {
        "name": h.implementation,
        "what": h.what,
        "started": h.started,
        "profile": h.profile,
        "commit": (h.environment.commit or "")[:10] + "+" * bool(h.environment.dirty),
    }
    if h.what == "conformance":
        order = list(Verdict)
        worst: dict[str, Verdict] = {}
        for r in file.results:
            before = worst.get(r.requirement, Verdict.NOT_RUN)
            worst[r.requirement] = min(before, r.verdict, key=order.index)
        return run | {"verdicts": worst}
    return run
