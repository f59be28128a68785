"""The page's style and the small script that shows values under the pointer; the page reads well without it."""

STYLE = """
:root { --ground: #f4f5f8; --card: #fff; --ink: #171a21; --grey: #5f6776; --line: #dde1e8; --rail: #eceff4;
  --accent: #1c63b7; --warn: #a33a00; --warn-ground: #ffe9d6; --good: #1b7a4b; --bad: #b3261e;
  --t1: #1c63b7; --t2: #c2570c; --t3: #1a8566; --t4: #8449b5; --t5: #a8841a; --t6: #5f6776; --strong: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #12151c; --card: #1a1f29; --ink: #e7eaf0; --grey: #9aa3b3; --line: #2d3443; --rail: #252b38;
    --accent: #6aaefc; --warn: #ffb067; --warn-ground: #40270f; --good: #5fcf95; --bad: #ff8b80;
    --t1: #5aa5fa; --t2: #ff9e4d; --t3: #4cc9a0; --t4: #c192ee; --t5: #dcc05f; --t6: #9aa3b3; --strong: #10131a; }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 52px; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 26px 18px 60px; }
.top { position: sticky; top: 0; z-index: 2; background: var(--card); border-bottom: 1px solid var(--line); }
.top > div { max-width: 1180px; margin: 0 auto; padding: 7px 18px; font-size: 13px; display: flex; gap: 4px 12px;
  flex-wrap: wrap; align-items: baseline; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 44px 0 12px; font-size: 1.25rem; }
h3 { margin: 0 0 6px; font-size: 1rem; overflow-wrap: anywhere; }
h3 small, figcaption > span, .dim { color: var(--grey); font-weight: 400; }
p { margin: 0 0 12px; }
.card + p { margin-top: 12px; }
.kind { margin: 0 0 4px; color: var(--grey); font-size: 13px; letter-spacing: .02em; }
.hero { display: flex; flex-wrap: wrap; align-items: center; gap: 10px 22px; margin: 14px 0 18px; }
.score { display: flex; align-items: center; gap: 16px; flex-wrap: wrap; }
.score strong { font-size: clamp(3rem, 9vw, 4.4rem); line-height: 1; letter-spacing: -.03em; color: var(--accent); }
.score strong small { font-size: .5em; letter-spacing: 0; }
.score div span { display: block; }
.badge { display: inline-block; padding: 2px 10px; border-radius: 99px; font-size: 13px; font-weight: 600;
  color: var(--accent); border: 1px solid currentColor; }
.badge.warn { color: var(--warn); background: var(--warn-ground); }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); margin: 0;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
.facts div { padding: 9px 14px; box-shadow: 1px 1px 0 var(--line); }
dt { color: var(--grey); font-size: 12.5px; }
dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 16px; font-size: 14px; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.grid { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.grid + .grid, .grid + .card { margin-top: 14px; }
.card { margin: 0; padding: 14px 16px; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  min-width: 0; break-inside: avoid; }
figure.card { display: flex; flex-direction: column; }
figcaption { font-size: 13.5px; line-height: 1.4; }
figure.card > figcaption { flex: 1; margin-bottom: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 0 14px; color: var(--grey); font-size: 12.5px; }
.key svg { width: 18px; height: 8px; margin-right: 5px; }
.key em { font-style: normal; color: var(--ink); font-variant-numeric: tabular-nums; }
.key { overflow-wrap: anywhere; }
.chart { display: block; width: 100%; max-width: 580px; height: auto; margin: 0 auto; overflow: visible;
  touch-action: pan-y; }
svg text { font-size: 11px; fill: var(--grey); }
.chart text { paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.line, .axis, .mark, path.grid { vector-effect: non-scaling-stroke; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.dashed { stroke-dasharray: 4 3.5; }
.line.t1 { stroke: var(--t1); } .line.t2 { stroke: var(--t2); } .line.t3 { stroke: var(--t3); }
.line.t4 { stroke: var(--t4); } .line.t5 { stroke: var(--t5); } .line.t6 { stroke: var(--t6); }
.dot.t1, .fill.t1 { fill: var(--t1); } .dot.t2, .fill.t2 { fill: var(--t2); } .dot.t3, .fill.t3 { fill: var(--t3); }
.dot.t4, .fill.t4 { fill: var(--t4); } .dot.t5, .fill.t5 { fill: var(--t5); } .dot.t6, .fill.t6 { fill: var(--t6); }
path.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--grey); stroke-width: 1; }
.mark { stroke: var(--grey); stroke-width: 1; stroke-dasharray: 2 3; }
.cursor { stroke: var(--ink); stroke-width: 1; opacity: .5; pointer-events: none; visibility: hidden; }
.cursor.shown { visibility: visible; }
.bad { fill: var(--bad); }
.rail { fill: var(--rail); }
.bar { display: block; width: 100%; min-width: 60px; height: 9px; border-radius: 5px; }
.scroll { overflow-x: auto; }
.tall { max-height: 560px; overflow-y: auto; }
.matrix { display: block; max-width: 100%; height: auto; margin: 0 auto; }
.matrix.numbers { max-width: none; }
.matrix text { font-size: 12px; fill: var(--ink); }
.matrix text.strong { fill: var(--strong); font-weight: 600; }
.hit { fill: var(--t1); } .miss { fill: var(--t2); }
.matrix g:hover rect { stroke: var(--ink); stroke-width: 1.5; }
table { width: 100%; border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px 4px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child { text-align: left; font-weight: 500; }
thead th { color: var(--grey); font-weight: 400; font-size: 12.5px; }
tbody tr:last-child > * { border-bottom: 0; }
tfoot th, tfoot td { border-top: 1px solid var(--grey); border-bottom: 0; font-weight: 700; }
.classes td:nth-child(2) { width: 62%; padding-right: 20px; }
.classes th:first-child { width: 1%; padding-right: 16px; max-width: 240px; overflow: hidden; text-overflow: ellipsis; }
#log td:nth-child(2), #log thead th:nth-child(2) { text-align: left; color: var(--grey); }
.missing { margin: 12px 0; padding: 8px 14px; border-left: 3px solid var(--line); color: var(--grey);
  overflow-wrap: anywhere; }
.missing.warn { border-color: var(--bad); color: var(--bad); }
b.warn { color: var(--bad); }
.samples { display: grid; gap: 14px; }
.strip { display: grid; gap: 6px; grid-template-columns: repeat(auto-fill, minmax(68px, 1fr)); align-content: start; }
.strip figure { margin: 0; }
.strip figcaption { text-align: center; color: var(--grey); font-size: 11.5px; }
.strip .bar { min-width: 0; height: 4px; margin-top: 3px; }
.fill.glow { fill: #5bbf48; }
.frame { position: relative; border-radius: 5px; overflow: hidden; background: #0e1118; }
.frame img { display: block; width: 100%; height: auto; image-rendering: pixelated; }
.frame .attention { position: absolute; inset: 0; height: 100%; image-rendering: auto; }
.panel { display: grid; gap: 8px 22px; }
.sample .card { border: 0; padding: 0; }
.verdict { font-weight: 700; } .right { color: var(--good); } .wrong { color: var(--bad); }
#overlay { margin: 0 8px 6px 0; accent-color: var(--accent); }
#overlay:not(:checked) ~ .samples .attention { display: none; }
.colours { margin: 0 0 12px; color: var(--grey); font-size: 13.5px; }
.strip + p { margin: 4px 0 0; font-size: 12.5px; }
.colours i { display: inline-block; width: 11px; height: 11px; margin: 0 5px 0 10px; border-radius: 3px; }
.colours i:first-child { margin-left: 0; }
.on { background: #ff9e3c; } .off { background: #3ea6ff; } .glow { background: #96ff82; border: 1px solid #3a8d2c; }
pre { overflow-x: auto; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .92em; }
ul { margin: 0; padding-left: 20px; }
#tip { position: fixed; z-index: 3; pointer-events: none; padding: 6px 10px; border-radius: 7px; font-size: 12.5px;
  background: var(--ink); color: var(--ground); max-width: 260px; font-variant-numeric: tabular-nums; }
#tip b { display: block; }
#tip span { display: block; overflow-wrap: anywhere; }
@media (min-width: 760px) { .panel { grid-template-columns: minmax(0, 1.75fr) minmax(0, 1fr); } }
@media (min-width: 960px) {
  .strip { grid-template-columns: repeat(8, 1fr); }
  .grid.wide .chart text { font-size: 8px; stroke-width: 2px; }
}
@media (max-width: 560px) {
  main { padding: 16px 12px 40px; } .card { padding: 12px; }
  .matrix.numbers { width: 560px; } .bar { min-width: 36px; }
  .classes th:first-child { width: 42%; white-space: normal; overflow-wrap: break-word; }
  .classes td { padding-right: 6px; } .classes td:nth-child(2) { width: 24%; padding-right: 8px; }
  .facts { grid-template-columns: 1fr 1fr; }
}
@media print {
  :root { --ground: #fff; --card: #fff; --ink: #000; --grey: #444; --line: #ccc; }
  body { font-size: 11px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .top { position: static; } nav, #overlay, #overlay + label, #tip { display: none; }
  .grid { grid-template-columns: 1fr 1fr; }
  .panel { grid-template-columns: minmax(0, 1.75fr) minmax(0, 1fr); } h2 { break-after: avoid; margin-top: 20px; }
  .tall { max-height: none; } pre { white-space: pre-wrap; } main { max-width: none; padding: 0; }
}
"""

SCRIPT = """
'use strict';
const tip = document.getElementById('tip');
for (const chart of document.querySelectorAll('svg[data-chart]')) {
  const data = JSON.parse(chart.dataset.chart), cursor = chart.querySelector('.cursor');
  const hide = () => { tip.hidden = true; cursor.classList.remove('shown'); };
  chart.addEventListener('pointermove', event => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
    let near = 0;
    data.x.forEach((place, index) => { if (Math.abs(place - x) < Math.abs(data.x[near] - x)) near = index; });
    cursor.setAttribute('x1', data.x[near]); cursor.setAttribute('x2', data.x[near]);
    cursor.classList.add('shown');
    const head = document.createElement('b');
    head.textContent = data.name + ' ' + data.at[near];
    const rows = data.lines.map(line => {
      const row = document.createElement('span');
      row.textContent = line.name + ': ' + line.values[near];
      return row;
    });
    tip.replaceChildren(head, ...rows);
    tip.hidden = false;
    const at = event.clientX, room = 16 + tip.offsetWidth;
    tip.style.left = Math.max(4, at + room > innerWidth ? at - room : at + 16) + 'px';
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4) + 'px';
  });
  chart.addEventListener('pointerleave', hide);
  chart.addEventListener('pointercancel', hide);
}
"""
