"""The pages: what they say, that they need no network, and that a browser shows them without an error."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from kvproof import spec
from kvproof.cli_results import COMMITTED
from kvproof.report.results import read
from kvproof.report.site import pages
from kvproof.report.site.pairs import compared
from kvproof.selftest.result_files import BAD, good_and_bad, judged, measured, past

pytest.importorskip("jinja2", reason="the pages need jinja2: pip install 'kvproof[report]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    good_and_bad(folder)
    (folder / "kill-matrix.md").write_text(
        f"| own_keys | {BAD[4:]} | keys of a page alone | - | yes | 2 | - |\n"
    )
    (folder / "broken.jsonl").write_text((folder / "good.jsonl").read_text().rsplit("\n", 2)[0] + "\n")
    runs = [past(run, 1 + run % 2 / 100, fork=1 + (run > 4) / 10) for run in range(10)]
    (folder / "history.jsonl").write_text("".join(p.model_dump_json() + "\n" for p in runs))
    first = pages.build(sorted(folder.glob("*.jsonl")), folder / "site")
    assert first == folder / "site" / "index.html"
    return folder / "site"


def test_the_overview_leads_to_the_failure_and_says_what_to_do(site: Path) -> None:
    overview = (site / "index.html").read_text(encoding="utf-8")
    link = re.search(
        r'<td class="fail"[^>]*><a href="(implementations/bad-manager.html)#(PREFIX)">1 of \d+</a>', overview
    )
    assert link, "the red cell links to the failure"
    page = unescape((site / link[1]).read_text(encoding="utf-8"))
    assert f'id="{link[2]}"' in page
    assert f'id="{BAD}"' in page
    r = spec.load().requirements[BAD]
    wanted = r.text.split("`")[0], r.why.split("`")[0], "keys of a page alone", "good-manager.html"
    for text in ("its own KV", "kvproof replay x", "4 blocks of 2 tokens", r.title, *wanted):
        assert text in page
    assert "broken.jsonl" in overview, "a file that cannot be used is named"


def test_what_a_subject_says_cannot_become_a_part_of_the_page(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert "<script>alert" not in path.read_text(encoding="utf-8"), path


def test_a_requirement_page_tells_who_fails_it(site: Path) -> None:
    page = (site / "requirements" / "kvp-prefix-002.html").read_text(encoding="utf-8")
    assert page.index(">bad</a>") < page.index(">good</a>"), "failing ones first"
    assert spec.load().requirements[BAD].why.split()[0] in page


def test_nothing_is_loaded_from_elsewhere_and_every_link_is_there(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//', text), path
        for target in re.findall(r'(?:href|src)="(?!https:|data:)([^"#]+)', text):
            assert (path.parent / target).resolve().is_file() or "vega" in target, f"{path.name}: {target}"


def test_a_file_without_reasons_takes_them_from_another(tmp_path: Path) -> None:
    """Results of old have a dash where the reason is, and no line that runs a failure again."""
    judged(tmp_path / "new.jsonl", "new", started="2026-01-01")
    judged(tmp_path / "old.jsonl", "old", BAD, started="2026-01-02")
    text = (tmp_path / "old.jsonl").read_text(encoding="utf-8").replace("kvproof replay x", "")
    (tmp_path / "old.jsonl").write_text(
        re.sub(r'"why":"(?:[^"\\]|\\.)*"', '"why":"-"', text), encoding="utf-8"
    )
    pages.build(sorted(tmp_path.glob("*.jsonl")), tmp_path / "site")
    old = tmp_path / "site" / "implementations" / "old-manager.html"
    page = unescape(old.read_text(encoding="utf-8"))
    assert spec.load().requirements[BAD].why.split("`")[0] in page
    assert f"kvproof conformance --impl old --profile manager --requirement {BAD}</code>" in page


def test_the_newest_run_of_an_implementation_is_shown(tmp_path: Path) -> None:
    judged(tmp_path / "b.jsonl", "one", started="2026-01-02")
    judged(tmp_path / "a.jsonl", "one", BAD, started="2026-01-01")
    pages.build(sorted(tmp_path.glob("*.jsonl")), tmp_path / "site")
    assert "PREFIX-002: " not in (tmp_path / "site" / "implementations" / "one-manager.html").read_text()


def test_a_file_that_contradicts_itself_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    judged(tmp_path / "good.jsonl", "good")
    judged(tmp_path / "odd.jsonl", "odd")
    text = (tmp_path / "odd.jsonl").read_text(encoding="utf-8")
    odd = text.replace('"requirement":"KVP-POOL-001"', '"requirement":"KVP-NONE-001"')
    (tmp_path / "odd.jsonl").write_text(odd, encoding="utf-8")
    overview = pages.build(sorted(tmp_path.glob("*.jsonl")), tmp_path / "site").read_text(encoding="utf-8")
    assert "the header has no requirement KVP-NONE-001" in overview
    assert "implementations/good-manager.html" in overview


def test_a_folder_that_is_no_site_is_left_alone(tmp_path: Path) -> None:
    judged(tmp_path / "a.jsonl", "one")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else than a site"):
        pages.build([tmp_path / "a.jsonl"], tmp_path / "site")
    assert (tmp_path / "site" / "mine.txt").read_text() == "mine"


def test_without_a_complete_file_there_is_no_site(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no complete result file"):
        pages.build([], tmp_path / "site")


# ---------------------------------------------------------------- in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PICTURES = "KVPROOF_PICTURES"
"""A folder that keeps pictures of every page."""
DRAWN = "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg'))"
"""All charts of a page are there."""
OPENED = ("reference", "plain", "cpu_kernel", "torch_sdpa", "vllm", "sglang", "transformers", "lmdeploy")
"""Are among the committed results."""
LOOKS = (("light", 1280, "light"), ("dark", 1280, "dark"), ("telephone", 390, "light"))
"""(name, width, colours) of these pictures."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="a browser is driven by playwright: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome on the path: the pages were not looked at in a browser")
    quiet = [
        "--no-sandbox",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield chromium
        chromium.close()


def test_every_page_renders_without_an_error_or_a_request(site: Path, browser: Any) -> None:
    said: list[str] = []
    asked: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on(
        "console", lambda m: said.append(f"{page.url}: {m.text}") if m.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda e: said.append(f"{page.url}: {e}"))
    page.on("request", lambda r: asked.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    pictures = os.environ.get(PICTURES)
    shown = [p for p in sorted(site.rglob("*.html")) if "requirements" not in p.parts or "prefix" in p.name]
    for path in shown:
        page.goto(path.as_uri())
        page.wait_for_function(DRAWN)
        assert page.locator("h1").inner_text()
        if pictures:
            name = "-".join(path.relative_to(site).with_suffix("").parts)
            for kind, width, scheme in LOOKS:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=str(Path(pictures) / f"{name}-{kind}.png"), full_page=True)
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 1280, "height": 900})
    assert (said, asked) == ([], [])
    page.close()


def test_the_committed_results_say_why_and_what_to_do(browser: Any, tmp_path: Path) -> None:
    """From a cell of the overview that is not green, on a telephone: what is required, how to see it."""
    results = spec.find().parent / "results"
    if not results.is_dir():
        pytest.skip("the results are committed beside the source: run this in a checkout")
    files = [p for name in COMMITTED for p in sorted((results / name).rglob("*.jsonl"))]
    page, said = browser.new_page(viewport={"width": 390, "height": 800}), []
    page.on(
        "console", lambda m: said.append(f"{page.url}: {m.text}") if m.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda e: said.append(f"{page.url}: {e}"))
    page.goto(pages.build(files, tmp_path / "site").as_uri())
    names = set(page.locator("table.matrix tbody th a").all_inner_texts())
    assert names >= set(OPENED)
    cells = page.locator("td.fail a, td.advice a, td.known a")
    links = cells.evaluate_all("all => all.map(a => [a.href.split('#')[0], a.href.split('#')[1]])")
    areas: dict[str, list[str]] = {}
    for href, area in links:
        areas.setdefault(href, []).append(area)
    assert len(areas) >= 8
    charts = [(tmp_path / "site" / "bench" / f"{name}.html").as_uri() for name in ("replay", "attention")]
    for href in (*areas, *charts):
        page.goto(href)
        page.wait_for_function(DRAWN)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, href
        shown = page.evaluate(
            "all => all.map(area => document.querySelector(`#${area} + article dl`).innerText)",
            areas.get(href, []),
        )
        for failure in shown:
            parts = ("required", "why it matters", "run it again", "it holds in")
            assert all(f"{part}\n" in failure for part in parts), f"{href}: {failure}"
            assert "kvproof conformance --impl" in failure
            assert "\n-\n" not in failure, "a reason is missing"
    assert said == []
    page.close()


def test_charts_are_drawn(site: Path, browser: Any) -> None:
    pytest.importorskip("altair", reason="charts need altair: pip install 'kvproof[report]'")
    page = browser.new_page()
    page.goto((site / "bench" / "decode-step.html").as_uri())
    page.wait_for_selector(".chart svg")
    page.close()


def test_a_history_is_walked_step_by_step(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "implementations" / "bad-manager.html").as_uri())
    history = page.locator(".history").first
    assert "here it shows" in history.locator("output").inner_text()
    assert history.locator(".slot.wrong").count() == 1
    history.get_by_text("before").press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "next →", (
        "the keyboard is not lost at the end"
    )
    assert "here it shows" not in history.locator("output").inner_text()
    assert history.locator("tr").count() == 1, "one sequence at the first step"
    page.close()


def test_a_row_shows_its_history_where_a_link_names_it(browser: Any, tmp_path: Path) -> None:
    ids = [r.id for r in spec.load().requirements.values() if (r.profile, r.status) == ("manager", "active")]
    number = itertools.count(100)
    for i in range(9):  # more failures than have articles
        judged(tmp_path / f"{i}.jsonl", f"engine-{i}", ids)
        text = (tmp_path / f"{i}.jsonl").read_text(encoding="utf-8")
        each = re.sub(r'"tokens":\[1,2,3,4\]', lambda _: f'"tokens":[1,2,3,{next(number)}]', text)
        (tmp_path / f"{i}.jsonl").write_text(each, encoding="utf-8")
    pages.build(sorted(tmp_path.glob("*.jsonl")), tmp_path / "site")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    where = (tmp_path / "site" / "implementations" / "engine-3-manager.html").as_uri()
    page.goto(where)
    rows = page.locator("tr[id]")
    assert rows.count() == len(ids) - 500 // 9
    key = rows.last.get_attribute("id")
    assert not rows.last.locator("pre").is_visible()
    page.goto(f"{where}#{key}")
    assert "<- here" in rows.last.locator("pre").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_filters_are_kept_in_the_address(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.locator("select[name=show]").select_option("fail")
    rows = page.locator("table[data-rows] tbody tr:visible")
    assert rows.count() == 1
    assert "show=fail" in page.url
    page.goto(page.url)
    page.reload()
    assert rows.count() == 1
    page.close()


def test_find_works_by_keyboard(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("prefix-002")
    page.keyboard.press("Enter")
    page.wait_for_url("**/kvp-prefix-002.html")
    page.close()


def test_dark_and_a_telephone(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    for path in (p for p in site.rglob("*.html") if "requirements" not in p.parts or "prefix" in p.name):
        page.goto(path.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{path.name} is wider than the screen"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.goto((site / "index.html").as_uri())
    assert page.locator(".wide[tabindex='0']").count() == 1, (
        "what is wider than the screen scrolls by keyboard"
    )
    page.close()


def test_compare_tells_what_differs(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "compare.html").as_uri())
    names = page.locator("select[name=a] option").all_inner_texts()
    good, bad = (
        next(str(i) for i, n in enumerate(names) if n.startswith(f"{who} · conf")) for who in ("good", "bad")
    )
    page.locator("select[name=a]").select_option(good)
    page.locator("select[name=b]").select_option(bad)
    rows = page.locator("#changes tr").all_inner_texts()
    assert len(rows) == 1
    assert BAD[4:] in rows[0]
    assert "worse" in rows[0]
    assert page.locator("#changes a").first.get_attribute("href") == f"requirements/{BAD.lower()}.html"
    assert page.locator("#after").inner_text().split() == ["after", "bad"]
    assert not page.locator("#calibrated").is_visible()
    page.locator("select[name=b]").select_option(good)
    said = page.locator("#after").inner_text().split()
    assert said[:2] == ["after", "2026-01-01"], "two of one name are told by their date"
    bench = next(str(i) for i, n in enumerate(names) if " · bench · " in n)
    for side in ("a", "b"):
        page.locator(f"select[name={side}]").select_option(bench)
    assert page.locator("#calibrated").is_visible(), "of times it is said what the change is of"
    page.close()


def test_times_have_the_verdicts_of_kvproof_compare(tmp_path: Path) -> None:
    for name, times in (("a", 1.0), ("b", 1.3), ("c", 1.002)):
        measured(tmp_path / f"{name}.jsonl", ("one",))
        text = (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8")
        processes = [round(times * (2 + n / 1000), 4) for n in range(9)]
        text = text.replace('"processes":[]', f'"processes":{processes}').replace(
            '"cals":[]', '"cals":[1' + 8 * ",1" + "]"
        )
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    files = [read(tmp_path / f"{name}.jsonl") for name in "abc"]
    found = compared(files)
    assert {pair: {row[7] for row in told["times"]} for pair, told in found.items()} == {
        "0/1": {"SLOWER"},
        "0/2": {"SAME"},
        "1/2": {"FASTER"},
    }


def test_a_large_report_stays_small(tmp_path: Path) -> None:
    """Also where nothing holds in any of them."""
    many = [f"engine-{i}" for i in range(50)]
    for name in many:
        judged(tmp_path / f"{name}.jsonl", name, list(spec.load().requirements))
    for name in ("bench", "again"):  # a pair, which the page for comparing tells point by point
        measured(tmp_path / f"{name}.jsonl", tuple(many), points=100)
    pages.build(sorted(tmp_path.glob("*.jsonl")), tmp_path / "site")
    size = sum(p.stat().st_size for p in (tmp_path / "site").rglob("*") if p.is_file())
    assert size < 10e6, f"{size / 1e6:.1f} MB"
    assert (tmp_path / "site" / "assets" / "compare.js").read_text(encoding="utf-8").count("UNCLEAR") == 5000
