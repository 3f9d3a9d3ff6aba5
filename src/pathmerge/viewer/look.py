"""How a page looks, and what can be done with it: one style sheet, a few lines of script.

Choices a reader could not guess:
- Without scripts everything is there; with them tables can be sorted by their headings and filtered by words, and a
  click on a figure shows it at full size.
- Figures are drawn for white paper, so they keep it in the dark.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1d2329; --soft: #5b6570; --paper: #fdfdfc; --sheet: #f3f4f2; --line: #dcdfdc; --link: #00598f;
  --good: #00694c; --bad: #b3261e; --bad-paper: #fdf0ee; --open: #7a5b00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e7e9; --soft: #9ba6b0; --paper: #15191d; --sheet: #1e242a; --line: #353d45; --link: #7cc4f4;
    --good: #5ed3a8; --bad: #ff9a8f; --bad-paper: #3a1f1d; --open: #e6c257;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 3rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
a { color: var(--link); }
header { grid-area: header; border-bottom: 1px solid var(--line); padding-bottom: 1.2rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .8rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .6rem; }
.kind { margin: 0 0 .3rem; color: var(--soft); font-size: .9rem; }
.lead { margin: .6rem 0 0; font-size: 1.1rem; max-width: 46rem; }
.note { color: var(--soft); font-size: .92rem; max-width: 46rem; }
main p { max-width: 46rem; }
nav { grid-area: nav; font-size: .92rem; margin-top: 1.2rem; }
nav p { margin: 0 0 .4rem; color: var(--soft); }
nav ol { margin: 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
main { grid-area: main; min-width: 0; }
section { padding-top: 2.2rem; min-width: 0; }
footer { grid-area: footer; margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line);
  color: var(--soft); font-size: .9rem; }
@media (min-width: 70rem) {
  body { display: grid; grid-template-columns: 11.5rem minmax(0, 1fr); column-gap: 3rem;
    grid-template-areas: "header header" "nav main" "footer footer"; }
  nav { position: sticky; top: 0; align-self: start; margin: 0; padding: 2.3rem 0 1rem; max-height: 100vh;
    overflow: auto; }
  nav ol { display: block; }
  nav li { margin: .3rem 0; }
}
dl { display: grid; grid-template-columns: fit-content(45%) minmax(0, 1fr); gap: .25rem 1.4rem; margin: 0 0 1rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .88em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
pre { margin: .6rem 0 1rem; padding: .8rem 1rem; background: var(--sheet); border-radius: .4rem; overflow-x: auto; }
pre code { font-size: 1em; overflow-wrap: normal; }
figure { margin: 1rem 0 1.4rem; overflow-x: auto; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: .4rem; padding: .5rem; cursor: zoom-in; }
figure img.full { max-width: none; cursor: zoom-out; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .4rem; max-width: 46rem; position: sticky; left: 0; }
.row { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: flex-start; }
.row > figure { max-width: 100%; }
.row.halves > * { flex: 1 1 24rem; min-width: 0; }
.scroll { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .32rem .65rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child, td:first-child { padding-left: .3rem; }
th { font-weight: 600; line-height: 1.3; vertical-align: bottom; border-bottom: 2px solid var(--line); }
td.number, th.number { text-align: right; }
td.text { min-width: 9rem; white-space: normal; }
td.long { min-width: 14rem; white-space: normal; overflow-wrap: anywhere; }
tbody tr:hover { background: var(--sheet); }
th.sorts { cursor: pointer; user-select: none; }
th.sorts:hover { color: var(--link); }
th[aria-sort=ascending]::after { content: " ▴"; }
th[aria-sort=descending]::after { content: " ▾"; }
.filter { display: flex; gap: .8rem; align-items: center; margin: .6rem 0 0; color: var(--soft); font-size: .9rem; }
.filter input { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--line);
  border-radius: .3rem; padding: .25rem .6rem; width: 16rem; max-width: 60vw; }
details { margin: .5rem 0; border: 1px solid var(--line); border-radius: .4rem; padding: .1rem .9rem; }
summary { cursor: pointer; padding: .4rem 0; overflow-wrap: anywhere; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.open { color: var(--open); font-weight: 600; }
.failures { background: var(--bad-paper); border-left: 4px solid var(--bad); border-radius: .3rem;
  padding: .7rem 1rem; margin: 0 0 1rem; }
.failures p { margin: 0 0 .3rem; max-width: none; }
.failures ul { margin: 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 2rem; }
  h1 { font-size: 1.55rem; }
  .lead { font-size: 1rem; }
  th, td { padding: .3rem .5rem; }
  figure img.wide { min-width: 36rem; }
}
@media print { nav, .filter { display: none; } section { break-inside: avoid-page; } }
"""

SCRIPT = """
"use strict";
const told = cell => cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
function compare(a, b, sign) {
  if (a === b) return 0;
  if (a === "" || b === "") return a === "" ? 1 : -1;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, {numeric: true});
}
for (const table of document.querySelectorAll("table:not(.plain)")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  if (rows.length < 2) continue;
  heads.forEach((head, column) => {
    const sort = () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      body.append(...rows.sort((a, b) => compare(told(a.cells[column]), told(b.cells[column]), sign)));
    };
    head.classList.add("sorts");
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
  if (rows.length < 9) continue;
  const box = document.createElement("label"), input = document.createElement("input");
  const count = document.createElement("span");
  box.className = "filter";
  input.type = "search";
  input.placeholder = "filter rows by words";
  input.setAttribute("aria-label", "filter rows");
  box.append(input, count);
  table.parentElement.before(box);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\\s+/).filter(Boolean);
    for (const row of rows) {
      const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
    const shown = rows.filter(row => !row.hidden).length;
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
}
for (const picture of document.querySelectorAll("figure img"))
  picture.addEventListener("click", () => picture.classList.toggle("full"));
"""
