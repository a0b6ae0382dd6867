"use strict";
// Texts of models and environments become text nodes, and never HTML.

const MOST = 20000; // characters of a text that are shown
const AT_ONCE = 100; // rows of the list
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0d\ufeff\ufff0-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;

function element(name, kind, ...children) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

/* A text with its invisible characters as codes; only its beginning and end if it is long. */
function shown(value, most = MOST) {
  const whole = typeof value === "string" ? value : JSON.stringify(value) ?? "", tail = Math.floor(most / 4);
  const made = document.createDocumentFragment();
  if (whole.length > most) {
    const left = element("span", "code", whole.length - most + " characters left out");
    made.append(shown(whole.slice(0, most - tail), most), "\n", left, "\n", shown(whole.slice(-tail), most));
    return made;
  }
  let position = 0;
  for (const found of whole.matchAll(UNSEEN)) {
    const code = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    made.append(whole.slice(position, found.index), element("span", "code", "U+" + code));
    position = found.index + found[0].length;
  }
  made.append(whole.slice(position));
  return made;
}

// Boards

const COLOURS = { "#": 0, "_": 1, " ": 1, ".": 1 }; // walls and floors
const MOST_CELLS = 1200, MOST_SYMBOLS = 9;
const HEAD = /^[A-Za-z ]+:$/;
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]/;

function isRow(line) {
  const cells = Array.from(line);
  return cells.length > 1 && !HEAD.test(line) && cells.every((cell) => /^[\x20-\x7e]$/.test(cell) || (/^[\p{S}\p{N}]$/u.test(cell) && !WIDE.test(cell)));
}

function isBoard(lines) {
  const width = Array.from(lines[0] || "").length, symbols = new Set(lines.join(""));
  return lines.length > 1 && lines.length * width <= MOST_CELLS && symbols.size > 1 && symbols.size <= MOST_SYMBOLS;
}

function grid(lines) {
  let rows = lines.map((line) => Array.from(line));
  if (rows.every((row) => row.every((cell, at) => at % 2 === 0 || cell === " "))) {
    rows = rows.map((row) => row.filter((_, at) => at % 2 === 0)); // symbols with blanks between them
  }
  const made = element("div", "grid");
  made.style.gridTemplateColumns = "repeat(" + rows[0].length + ", auto)";
  for (const cell of rows.flat()) made.append(element("span", "c" + (COLOURS[cell] ?? 2 + (cell.codePointAt(0) % 6)), cell));
  return made;
}

/* A text in which each board, neighboring lines of equal length with few symbols, is drawn as a grid. */
function withBoards(text) {
  const made = document.createDocumentFragment(), lines = text.slice(0, 2 * MOST).split("\n");
  const rows = lines.map((line) => line.trim()).map((line) => (isRow(line) ? line : ""));
  let words = [];
  const flush = () => {
    const plain = words.join("\n").replace(/^\n+|\s+$/g, "");
    if (plain) made.append(element("pre", "", shown(plain)));
    words = [];
  };
  for (let at = 0; at < lines.length; ) {
    const width = rows[at].length;
    let end = at;
    while (width && end < lines.length && rows[end].length === width && (end - at) * width <= MOST_CELLS) end++;
    if (isBoard(rows.slice(at, end))) {
      flush();
      made.append(grid(rows.slice(at, end)));
      at = end;
    } else {
      words.push(lines[at++]);
    }
  }
  words.push(text.slice(2 * MOST));
  flush();
  return made;
}

// Trajectories

function textBlock(kind, label, text) {
  const made = element("div", "text " + kind, shown(text));
  made.dir = "auto";
  if (label) made.dataset.label = label;
  return made;
}

/* A reply: its first thought and the answer behind it apart from the rest. */
function reply(text) {
  const made = document.createDocumentFragment();
  let position = 0;
  const add = (kind, label, part) => part.trim() && made.append(textBlock(kind, label, part));
  for (const [tag, kind] of [["think", "thought"], ["answer", "answer"]]) {
    const start = text.indexOf("<" + tag + ">", position);
    const end = start < 0 ? -1 : text.indexOf("</" + tag + ">", start);
    if (end < 0) continue;
    add("rest", "outside of tags", text.slice(position, start));
    add(kind, kind, text.slice(start + tag.length + 2, end));
    position = end + tag.length + 3;
  }
  add("rest", position ? "outside of tags" : "malformed reply", text.slice(position));
  if (!made.childNodes.length) made.append(element("p", "bad", "the reply is empty"));
  return made;
}

function definitions(values) {
  const made = element("dl");
  for (const [name, value] of Object.entries(values)) {
    const short = typeof value === "number" ? String(Number(value.toPrecision(6))) : value;
    made.append(element("div", "", element("dt", "", shown(name, 200)), element("dd", "", shown(short, 1000))));
  }
  return made;
}

function executed(row, turn) {
  const actions = row.actions[turn] || [];
  if (!actions.length) return element("p", "bad", "nothing was executed");
  const made = element("div", "chips", "executed: ");
  for (const action of actions) {
    const name = action === null ? "a text" : (row.action_names || {})[action] ?? action;
    made.append(element("span", String(name).includes("\n") ? "lines" : "", shown(name, 500)));
  }
  return made;
}

function text(message) {
  return typeof message.content === "string" ? message.content : message.content.map((part) => part.text || "").join("");
}

function state(words, images) {
  const made = element("div", "state");
  for (const data of images || []) {
    if (!String(data).startsWith("data:image/png;base64,")) continue;
    const image = element("img");
    image.alt = "state";
    image.src = data;
    made.append(image);
  }
  made.append(withBoards(words));
  return made;
}

function turnOf(row, turn, before, message) {
  const right = element("div"), raw = (row.raw_replies || [])[turn], facts = { reward: row.rewards[turn] };
  if (message) right.append(reply(text(message)));
  if (message && raw !== undefined && !text(message).endsWith(raw)) right.append(textBlock("rest", "as the model wrote it", raw));
  if (turn < row.actions.length) {
    right.append(executed(row, turn), definitions({ ...facts, ...(row.infos || [])[turn], ...(row.replies || [])[turn] }));
  }
  if ((row.invalid || [])[turn]) right.append(element("p", "bad", "an invalid reply"));
  return element("section", "turn", element("h4", "", "Turn " + (turn + 1)), state(before, (row.images || [])[turn]), right);
}

/* All turns of a trajectory, as the chat has them, and how it ended. */
function body(row) {
  const made = element("div", "turns");
  let turn = 0, before = [];
  for (const message of row.messages || []) {
    if (message.role === "assistant") {
      made.append(turnOf(row, turn++, before.join("\n"), message));
      before = [];
    } else if (message.role === "user") {
      before.push(text(message));
    } else {
      made.append(textBlock("rest", String(message.role), text(message)));
    }
  }
  for (; turn < row.actions.length; turn++) made.append(turnOf(row, turn, before.splice(0).join("\n")));
  const last = row.last_state ?? before.join("\n"), images = (row.images || [])[turn];
  if (last || images) made.append(element("section", "turn", element("h4", "", "In the end"), state(last, images)));
  for (const why of [row.error, row.env_error, row.out_of_context]) {
    if (why !== undefined) made.append(element("p", "bad", "It ended early: ", shown(why, 2000)));
  }
  return made;
}

// The list

const FILTERS = { tag: "Tag", outcome: "Outcome", failure: "Failure", replies: "Some reply" };
const ORDERS = { "": "as played", "reward -1": "highest reward", "reward 1": "lowest reward", "turns -1": "most turns" };

function start(holder, rows) {
  const packs = Array.from(document.querySelectorAll("script.pack"));
  const opened = new Map(); // the packs that were looked at last
  let matching = [], drawn = 0, asking = 0, pause = 0;

  async function unpacked(pack) {
    if (!opened.has(pack)) {
      const bytes = Uint8Array.from(atob(pack.textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      opened.set(pack, JSON.parse(await new Response(stream).text()));
      if (opened.size > 4) opened.delete(opened.keys().next().value);
    }
    return opened.get(pack);
  }

  async function whole(number) {
    const pack = packs.findLast((each) => Number(each.dataset.first) <= number);
    return pack && (await unpacked(pack))[number - Number(pack.dataset.first)];
  }

  async function fill(line, number) {
    if (line.dataset.state) return;
    line.dataset.state = "asked";
    line.append(body(await whole(number)));
  }

  function heads(row) {
    const seed = row.seed === null ? "" : ", seed " + row.seed;
    return [
      [row.tag, "name"], ["env " + row.env], ["group " + row.group + seed], [row.outcome, row.outcome === "success" ? "yes" : "no"],
      [row.failure, "bad"], ["reward " + Number(row.reward.toPrecision(4))], [row.penalty ? "penalty " + row.penalty : ""],
      [row.turns + (row.turns === 1 ? " turn" : " turns")], ...row.replies.map((each) => [each, "bad"]),
    ].filter(([words]) => words);
  }

  function draw(number) {
    const line = element("details", "row"), head = element("summary");
    for (const [words, kind] of heads(rows[number])) head.append(element("span", kind, shown(words)), " ");
    line.append(head);
    line.addEventListener("toggle", () => line.open && fill(line, number));
    return line;
  }

  function drawMore() {
    const until = Math.min(matching.length, drawn + AT_ONCE);
    for (; drawn < until; drawn++) list.append(draw(matching[drawn]));
    const left = matching.length - drawn;
    more.hidden = left <= 0;
    more.textContent = "show " + Math.min(AT_ONCE, left) + " more of " + left;
  }

  async function withWords(numbers, words, mine) {
    const found = [];
    for (const number of numbers) {
      let has = heads(rows[number]).map(([each]) => each).join(" ").toLowerCase().includes(words);
      if (!has) {
        const look = (value) => typeof value === "object" && value !== null ? Object.values(value).some(look) : String(value).toLowerCase().includes(words);
        has = look((await whole(number)) || "");
      }
      if (mine !== asking) return null;
      if (has) found.push(number);
    }
    return found;
  }

  async function apply() {
    const mine = ++asking, words = search.value.trim().toLowerCase(), [by, way] = order.value.split(" ");
    const fits = (row) => selects.every((select) => !select.value || [row[select.name]].flat().includes(select.value));
    let numbers = Array.from(rows.keys()).filter((number) => fits(rows[number]));
    if (words) {
      count.textContent = "searching ..";
      numbers = await withWords(numbers, words, mine);
      if (numbers === null) return;
    }
    if (by) numbers.sort((one, other) => way * (rows[one][by] - rows[other][by]) || one - other);
    matching = numbers;
    drawn = 0;
    list.replaceChildren();
    drawMore();
    count.textContent = matching.length + " of " + rows.length + " trajectories";
  }

  const form = element("form", "filters"), count = element("span", "soft count"), list = element("div");
  const more = element("button", "more");
  more.type = "button";

  function labelled(words, name, field) {
    field.name = name;
    const label = element("label", "", words, document.createElement("br"), field);
    form.append(label);
    return label;
  }

  const selects = Object.entries(FILTERS).map(([name, label]) => {
    const select = document.createElement("select");
    const known = new Set(rows.flatMap((row) => row[name]).filter(Boolean));
    select.append(new Option("all", ""));
    for (const each of known) select.append(new Option(shown(each).textContent, each));
    labelled(label, name, select).hidden = known.size < (name === "failure" || name === "replies" ? 1 : 2);
    return select;
  });
  const search = element("input");
  search.type = "search";
  labelled("Text", "words", search);
  const order = document.createElement("select");
  for (const [value, words] of Object.entries(ORDERS)) order.append(new Option(words, value));
  labelled("Order", "order", order);
  form.append(count);
  holder.replaceChildren(form, list, more);
  form.addEventListener("input", (event) => {
    clearTimeout(pause);
    pause = setTimeout(apply, event.target === search ? 300 : 0);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", drawMore);
  apply();
}

if (document.getElementById("rows")) {
  start(document.getElementById("list"), JSON.parse(document.getElementById("rows").textContent));
}
