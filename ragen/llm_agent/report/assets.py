"""The page's style and script, and the policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2430; --soft: #667085; --line: #e3e6eb; --card: #f7f8fa;
  --good: #1a7f4b; --bad: #b42318; --think: #f4f0ff; --act: #e7f6ee;
  --generation: #4c78a8; --environments: #54a24b; --tokenising: #eeb033; --imports: #b8763e; --learning: #9d6fc4;
  --waiting: #d5dae2; --mark: #d92d20; --shade: #1d243066; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6e9ef; --soft: #98a2b3; --line: #2c333f;
  --card: #1b212b; --good: #4cc38a; --bad: #ff8a7a; --think: #262038; --act: #16301f; --waiting: #3a4352;
  --shade: #e6e9ef66; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 16px 20px 60px; }
h1 { font-size: 24px; margin: 8px 0 0; } h2 { font-size: 18px; margin: 36px 0 10px; }
.soft, figcaption { color: var(--soft); } .number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; /* a shadow at each end at which there is more; the paper scrolls along and hides it */
  background: linear-gradient(90deg, var(--paper) 40%, transparent) left / 48px 100% no-repeat local,
    linear-gradient(270deg, var(--paper) 40%, transparent) right / 48px 100% no-repeat local,
    linear-gradient(90deg, var(--shade), transparent) left / 18px 100% no-repeat scroll,
    linear-gradient(270deg, var(--shade), transparent) right / 18px 100% no-repeat scroll; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: middle; white-space: nowrap; }
th.number { text-align: right; } td.bar { min-width: 150px; width: 40%; }
figure { margin: 0; } figcaption { font-size: 13px; }
figcaption, h1, summary span, .track span, td.name { overflow-wrap: anywhere; min-width: 0; }
td.name { white-space: normal; min-width: 130px; }
svg { display: block; width: 100%; }
.bar svg { height: 18px; }
.plots { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); }
.plot { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; min-width: 0; }
.plot svg { height: 110px; }
.ends { display: flex; justify-content: space-between; font-size: 12px; color: var(--soft); }
.curve svg { height: 220px; }
.track { display: grid; grid-template-columns: 110px 1fr; gap: 8px; align-items: center; margin: 2px 0;
  font-size: 13px; }
.track svg { height: 20px; background: var(--card); border-radius: 3px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; margin: 6px 0; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 5px;
  vertical-align: -1px; }
.generation { fill: var(--generation); background: var(--generation); }
.environments { fill: var(--environments); background: var(--environments); }
.tokenising { fill: var(--tokenising); background: var(--tokenising); }
.imports { fill: var(--imports); background: var(--imports); }
.learning { fill: var(--learning); background: var(--learning); }
.waiting { fill: var(--waiting); background: var(--waiting); } .restart { fill: var(--mark); background: var(--mark); }
.filters { display: flex; flex-wrap: wrap; gap: 8px; margin: 10px 0; position: sticky; top: 0; padding: 8px 0;
  background: var(--paper); z-index: 1; border-bottom: 1px solid var(--line); }
.filters label { font-size: 13px; color: var(--soft); min-width: 0; max-width: 100%; }
.filters select { max-width: 240px; }
select, input { font: inherit; padding: 3px 6px; max-width: 100%;
  color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 6px; }
.filters span { align-self: end; margin-left: auto; }
details.episode { border: 1px solid var(--line); border-radius: 8px; margin: 6px 0; background: var(--card); }
details.episode > summary { cursor: pointer; padding: 8px 12px; display: flex; flex-wrap: wrap; gap: 4px 14px; }
summary b { font-weight: 600; } .yes { color: var(--good); } .no, .bad { color: var(--bad); }
.turns { padding: 0 12px 10px; } .turn { border-top: 1px solid var(--line); padding: 10px 0; display: grid; gap: 14px;
  grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
.turn h4 { grid-column: 1 / -1; margin: 0; font-size: 13px; color: var(--soft); font-weight: 600; }
pre, .text { margin: 0 0 6px; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; max-height: 420px;
  overflow: auto; }
pre { font: 13px/1.4 ui-monospace, monospace; } .text { padding: 6px 9px; border-radius: 6px; }
.thought { background: var(--think); } .answer { background: var(--act); } .rest { border: 1px dashed var(--line); }
.text::before { content: attr(data-label); display: block; font-size: 11px; color: var(--soft); }
.chips span { display: inline-block; background: var(--act); border-radius: 10px; padding: 0 9px; margin: 0 5px 4px 0;
  overflow-wrap: anywhere; }
.code { font: 11px ui-monospace, monospace; background: #ffe3a3; color: #533c00; border-radius: 3px; padding: 0 3px; }
.grid { display: inline-grid; border: 1px solid var(--line); border-radius: 4px; overflow: hidden; margin-bottom: 6px; }
.grid span { width: 22px; height: 22px; font: 13px/22px ui-monospace, monospace; text-align: center; color: #1d2430; }
.c0 { background: #c9ced6; } .c1 { background: #fdfdfb; } .c2 { background: #f6c177; } .c3 { background: #9ccfd8; }
.c4 { background: #b4d6a4; } .c5 { background: #e9a3a3; } .c6 { background: #c9b6ea; } .c7 { background: #f1e38b; }
.state img { max-width: 100%; min-width: 96px; image-rendering: pixelated; border: 1px solid var(--line); }
dl { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0; font-size: 13px; }
dl div { display: flex; gap: 5px; min-width: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 640px) { main { padding: 8px 12px 40px; } .turn { grid-template-columns: minmax(0, 1fr); }
  .track { grid-template-columns: 1fr; gap: 0; } .filters { position: static; } .filters span { margin-left: 0; }
  .plots { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px; }
  .curve { grid-column: 1 / -1; }
  .results tr { display: grid; grid-template-columns: 1fr auto auto; border-bottom: 1px solid var(--line); }
  .results tr:first-child { display: none; } .results td { border: 0; padding: 3px 6px 3px 0; }
  .results td.bar { grid-row: 2; grid-column: 1 / -1; width: auto; } .results td.name { grid-column: 1 / -1; }
  .results td[data-label]::before { content: attr(data-label) " "; font-size: 12px; color: var(--soft); }
  .results td.number { text-align: left; }
  .grid span { width: 18px; height: 18px; line-height: 18px; } }
"""

SCRIPT = """
(function () {
  const form = document.getElementById("filters");
  if (!form) return;
  const episodes = Array.from(document.querySelectorAll("details.episode"));
  const count = document.getElementById("count");
  function fits(episode, wanted, words) {
    const data = episode.dataset;
    return (!wanted.tag || data.tag === wanted.tag) && (!wanted.success || data.success === wanted.success) &&
      (!wanted.invalid || data.invalid === wanted.invalid) && (!wanted.lane || data.lane === wanted.lane) &&
      (!wanted.outcome || data.outcome === wanted.outcome) &&
      (!wanted.kinds || data.kinds.split(" ").includes(wanted.kinds)) &&
      (!words || episode.textContent.toLowerCase().includes(words));
  }
  function apply() {
    const wanted = Object.fromEntries(new FormData(form));
    const words = (wanted.words || "").toLowerCase();
    let left = 0;
    for (const episode of episodes) {
      episode.hidden = !fits(episode, wanted, words);
      left += episode.hidden ? 0 : 1;
    }
    count.textContent = left + " of " + episodes.length + " trajectories";
  }
  form.addEventListener("input", apply);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  apply();
})();
"""


def policy() -> str:
    """The content security policy: this script, these styles, images that the page itself holds, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
