"use strict";
const root = document.documentElement.dataset.root || "";
const make = (tag, className, text) => {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
};

// ---------------------------------------------------------------- light and dark
const system = matchMedia("(prefers-color-scheme: dark)");
const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const dark = () => (stored() || (system.matches ? "dark" : "light")) === "dark";
const paint = () => {
  document.documentElement.dataset.theme = dark() ? "dark" : "light";
  charts();
};
document.getElementById("theme").addEventListener("click", () => {
  try { localStorage.setItem("theme", dark() ? "light" : "dark"); } catch { /* a page from disk may have no store */ }
  paint();
});
system.addEventListener("change", paint);

// ---------------------------------------------------------------- charts
function charts() {
  if (!window.vegaEmbed) return;
  for (const place of document.querySelectorAll(".chart")) {
    const data = place.dataset.spec || place.querySelector("script").textContent;
    place.dataset.spec = data;
    window.vegaEmbed(place, JSON.parse(data), { actions: false, renderer: "svg", config: looks() });
  }
}
window.addEventListener("vega", charts);
// The colours of the page, for what a chart has besides its data.
function looks() {
  const style = getComputedStyle(document.documentElement);
  const [fg, dim, line] = ["--fg", "--dim", "--line"].map((name) => style.getPropertyValue(name).trim());
  const text = { labelColor: fg, titleColor: fg };
  return {
    background: "transparent", view: { stroke: null }, title: { color: fg }, header: text,
    axis: { ...text, gridColor: line, domainColor: dim, tickColor: dim },
    legend: { ...text, symbolBaseStrokeColor: dim, symbolBaseFillColor: dim },
  };
}

// ---------------------------------------------------------------- what is wider than the screen scrolls by keyboard too
function reachable() {
  for (const place of document.querySelectorAll(".wide, .chart, pre")) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);

// ---------------------------------------------------------------- filters, kept in the address behind #
const form = document.querySelector("form.filter:not(#compare)");
const tables = document.querySelectorAll("table[data-rows]");
const fields = form ? [...form.elements].filter((e) => e.name) : [];
const inAddress = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
function filter() {
  if (!form) return;
  const wanted = fields.map((f) => [f.name, f.value.trim().toLowerCase()]).filter(([, v]) => v);
  let shown = 0, all = 0;
  for (const table of tables) {
    for (const row of table.tBodies[0].rows) {
      const fits = wanted.every(([name, v]) =>
        name === "q" ? v.split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word))
          : (row.dataset[name] || "").toLowerCase() === v);
      row.hidden = !fits;
      all += 1;
      shown += fits;
    }
  }
  form.querySelector("output").textContent = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
}
if (form) {
  const read = () => {
    const given = inAddress();
    for (const f of fields) f.value = given.get(f.name) || "";
    filter();
  };
  form.addEventListener("submit", (e) => e.preventDefault());
  form.addEventListener("input", () => {
    const values = fields.filter((f) => f.value).map((f) => [f.name, f.value]);
    history.replaceState(null, "", `#${new URLSearchParams(values)}`);
    filter();
  });
  addEventListener("hashchange", () => { if (location.hash.includes("=") || !location.hash) read(); });
  read();
}

// ---------------------------------------------------------------- a row that a link names shows its history
const unfold = () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("tr")?.querySelector("details")?.setAttribute("open", "");
addEventListener("hashchange", unfold);
unfold();

// ---------------------------------------------------------------- find
const find = document.getElementById("find"), found = document.getElementById("found");
find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = words.length ? (window.KVPROOF_INDEX || []).filter(([name, about]) =>
    words.every((w) => `${name} ${about}`.toLowerCase().includes(w))).slice(0, 20) : [];
  found.replaceChildren(...fits.map(([name, about, path]) => {
    const item = make("li"), link = make("a", "", `${name} `);
    link.href = root + path;
    link.append(make("small", "", about));
    item.append(link);
    return item;
  }));
  found.hidden = !fits.length;
});
document.addEventListener("keydown", (e) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName);
  if (e.key === "/" && !typing) { e.preventDefault(); find.focus(); }
  if (e.key === "Escape") { found.hidden = true; find.value = ""; }
  if ((e.key === "ArrowDown" || e.key === "ArrowUp") && !found.hidden) {
    const links = [...found.querySelectorAll("a")], at = links.indexOf(document.activeElement);
    const next = links[at + (e.key === "ArrowDown" ? 1 : -1)];
    e.preventDefault();
    (next || find).focus();
  }
  if (e.key === "Enter" && e.target === find && found.querySelector("a")) location.href = found.querySelector("a").href;
});

// ---------------------------------------------------------------- a failing history, step by step
const hue = (seq) => { let h = 7; for (const c of String(seq)) h = (h * 31 + c.charCodeAt(0)) % 360; return `hsl(${(h * 67) % 360} 70% 78%)`; };
for (const place of document.querySelectorAll(".history")) {
  const data = JSON.parse(place.querySelector("script").textContent);
  const contents = [];  // before each step: "block/offset" -> [seq, position]
  const now = new Map();
  for (const step of data.steps) {
    for (const [from, to] of step.copies) for (let o = 0; o < data.size; o++) if (now.has(`${from}/${o}`)) now.set(`${to}/${o}`, now.get(`${from}/${o}`));
    for (const [block, offset, seq, position] of step.writes) now.set(`${block}/${offset}`, [seq, position]);
    contents.push(new Map(now));
  }
  let at = Math.min(data.at ?? data.steps.length - 1, data.steps.length - 1);
  const bar = make("div", "steps"), state = make("div", "state"), said = make("output");
  const back = make("button", "", "← before"), on = make("button", "", "next →");
  back.type = on.type = "button";
  bar.append(back, on, said);
  place.append(bar, state);
  const show = () => {
    const step = data.steps[at], before = at ? data.steps[at - 1] : { tables: {} }, last = at === data.at;
    back.disabled = at === 0;
    on.disabled = at === data.steps.length - 1;
    said.textContent = `${at}: ${step.op} → ${step.outcome}${step.value === null ? "" : ` = ${step.value}`}` + (last ? "   ← here it shows" : "");
    const wrong = last && data.slot ? data.slot[0] : null;
    const owners = new Map();
    const rows = Object.entries(step.tables).map(([seq, table]) => {
      const row = make("tr"), cell = make("td");
      const name = make("th", "", `sequence ${seq}`);
      name.style.background = hue(seq);
      name.style.color = "#111";
      table.forEach((block, i) => {
        owners.set(block, [...(owners.get(block) || []), seq]);
        const fresh = (before.tables[seq] || [])[i] !== block;
        cell.append(make("span", `chip${fresh ? " new" : ""}${block === wrong ? " wrong" : ""}`, block));
      });
      row.append(name, cell);
      return row;
    });
    const table = make("table"), caption = make("caption", "", "block tables (new entries bold)");
    table.append(caption, ...rows);
    const pool = make("div", "pool");
    const blocks = new Set([...owners.keys(), ...[...contents[at].keys()].map((k) => Number(k.split("/")[0]))]);
    for (const block of [...blocks].sort((a, b) => a - b)) {
      const box = make("div", `block${block === wrong ? " wrong" : ""}`), slots = make("div", "slots");
      const count = step.refs[block], held = owners.get(block) || [];
      box.append(make("div", "", `${block}${count === undefined ? "" : ` ×${count}`}${held.length ? "" : " free"}`));
      for (let o = 0; o < data.size; o++) {
        const holds = contents[at].get(`${block}/${o}`);
        const slot = make("div", `slot${holds ? "" : " empty"}${block === wrong && o === data.slot[1] ? " wrong" : ""}`, holds ? `${holds[0]}:${holds[1]}` : "·");
        slot.title = holds ? `block ${block}, offset ${o}: written by sequence ${holds[0]} at position ${holds[1]}` : `block ${block}, offset ${o}: never written`;
        if (holds) slot.style.background = hue(holds[0]);
        slots.append(slot);
      }
      box.append(slots);
      pool.append(box);
    }
    const side = make("div");
    side.append(make("div", "", `pool: sequence:position in each slot${step.free === null ? "" : `; free ${step.free}`}` + (Object.keys(step.refs).length ? "; × references" : "")), pool);
    state.replaceChildren(table, side);
  };
  back.addEventListener("click", () => { at -= 1; show(); if (back.disabled) on.focus(); });
  on.addEventListener("click", () => { at += 1; show(); if (on.disabled) back.focus(); });
  show();
}

// ---------------------------------------------------------------- compare two runs
const order = ["SLOWER", "FASTER", "INVALID", "UNCLEAR", "SAME"];
const mirrored = ([what, unit, from, to, ratio, low, high, verdict]) =>
  [what, unit, to, from, 1 / ratio, 1 / high, 1 / low, { SLOWER: "FASTER", FASTER: "SLOWER" }[verdict] || verdict];
// The newest run and the one before it of the same implementation; of the same kind, if each ran once.
function newestPair(runs) {
  for (const same of [["what", "profile", "name"], ["what", "profile"]])
    for (let j = runs.length - 1; j > 0; j--)
      for (let i = j - 1; i >= 0; i--) if (same.every((key) => runs[i][key] === runs[j][key])) return [i, j];
  return [0, Math.min(1, runs.length - 1)];
}
const compare = document.getElementById("compare");
if (compare) {
  addEventListener("DOMContentLoaded", () => {
    const { runs = [], times = {} } = window.KVPROOF_COMPARE || {};
    const { a, b } = compare.elements;
    const when = (r) => r.started + (r.commit ? ` · ${r.commit}` : "");
    for (const select of [a, b]) runs.forEach((r, i) => select.append(new Option(`${r.name.length > 40 ? `${r.name.slice(0, 38)}…` : r.name} · ${r.what}${r.what === "bench" ? "" : ` ${r.profile}`} · ${when(r)}`, i)));
    const given = inAddress();
    const [first, second] = newestPair(runs);
    a.value = given.get("a") || first;
    b.value = given.get("b") || second;
    const titles = new Map((window.KVPROOF_INDEX || []).map(([name, about, path]) => [name, [about, path]]));
    const good = (v) => v === "PASS", bad = (v) => ["FAIL", "TIMEOUT", "ERROR", "XPASS"].includes(v);
    const rowOf = (what, x, y, change, kind) => {
      const row = make("tr");
      const name = make("th", "", titles.has(what) ? undefined : what);
      if (titles.has(what)) {
        const [about, path] = titles.get(what), link = make("a", "id", what.replace("KVP-", ""));
        link.href = root + path;
        name.append(link, make("small", "", ` ${about}`));
      }
      name.scope = "row";
      row.append(name, make("td", "", x), make("td", "", y), make("td", kind, change));
      return row;
    };
    const show = () => {
      const x = runs[a.value], y = runs[b.value], rows = [];
      const words = x.name === y.name ? ["broken", "fixed", "changed"] : ["worse", "better", "other"];
      for (const key of Object.keys({ ...x.verdicts, ...y.verdicts }).sort()) {
        const from = (x.verdicts || {})[key] || "NOT_RUN", to = (y.verdicts || {})[key] || "NOT_RUN";
        if (from === to || !x.verdicts || !y.verdicts) continue;
        const broken = (bad(to) && !bad(from)) || (good(from) && !good(to));
        rows.push(rowOf(key, from, to, words[broken ? 0 : good(to) ? 1 : 2], broken ? "fail" : good(to) ? "pass" : ""));
      }
      const both = times[`${a.value}/${b.value}`], turned = times[`${b.value}/${a.value}`];
      const told = (both || turned || { times: [] }).times.map((t) => (both ? t : mirrored(t)));
      const others = (both || turned || { told: [] }).told, way = both ? "" : ", the other way round";
      for (const [word, text] of others) rows.push(rowOf(text, "", "", word + way, both && ["broken", "changed", "gone"].includes(word) ? "fail" : ""));
      told.sort((p, q) => order.indexOf(p[7]) - order.indexOf(q[7]));
      for (const [what, unit, from, to, ratio, low, high, verdict] of told) {
        const interval = Number.isNaN(ratio) ? "" : `x ${ratio.toFixed(3)} (${low.toFixed(3)}–${high.toFixed(3)}) `;
        rows.push(rowOf(what, `${from.toPrecision(3)} ${unit}`, `${to.toPrecision(3)} ${unit}`, interval + verdict, { SLOWER: "fail", FASTER: "pass" }[verdict] || ""));
      }
      document.getElementById("changes").replaceChildren(...rows);
      document.getElementById("calibrated").hidden = x.what !== "bench" || y.what !== "bench";
      for (const [id, r] of [["before", x], ["after", y]])
        document.getElementById(id).replaceChildren(`${id} `, make("small", "", x.name === y.name ? when(r) : r.name));
      const counts = order.map((v) => [told.filter((t) => t[7] === v).length, v]).filter(([n]) => n);
      const floor = (both || turned || {}).floor;
      const more = others.length ? `${others.length} broken, changed, gone or new; ` : "";
      const said = told.length || more ? `${more}${counts.map(([n, v]) => `${n} ${v}`).join(", ")}${floor ? `; a change below ${(floor * 100).toFixed(1)} % is not told of every cell` : ""}.`
        : x === y ? "Choose two runs." : x.what === "bench" ? "Not compared on this page; kvproof compare BEFORE AFTER does it." : rows.length ? `${rows.length} differences.` : "No difference.";
      document.getElementById("said").textContent = x.what !== y.what ? "A conformance run and a benchmark have nothing in common; choose two of a kind."
        : [said, ...(both || turned || { notes: [] }).notes].join(" ");
    };
    compare.addEventListener("input", () => {
      history.replaceState(null, "", `#${new URLSearchParams([["a", a.value], ["b", b.value]])}`);
      show();
    });
    if (runs.length) show();
  });
}
paint();
