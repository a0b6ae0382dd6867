(function () {
  "use strict";
  const AT_ONCE = 100;
  const holder = document.getElementById("list");
  const data = document.getElementById("index");
  if (!holder || !data) return;

  const index = JSON.parse(data.textContent);
  const rows = index.rows;
  const packs = Array.from(document.querySelectorAll("script.pack"));
  const opened = new Map(); // the packs that were looked at last
  let matching = [], drawn = 0, asking = 0;

  function element(name, kind, words) {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (words !== undefined) made.textContent = words;
    return made;
  }

  // Bodies

  async function unpacked(pack) {
    if (!opened.has(pack)) {
      const bytes = Uint8Array.from(atob(pack.textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      opened.set(pack, JSON.parse(await new Response(stream).text()));
      if (opened.size > 4) opened.delete(opened.keys().next().value);
    }
    return opened.get(pack);
  }

  function packOf(number) {
    let found = null;
    for (const pack of packs) if (Number(pack.dataset.first) <= number) found = pack;
    return found;
  }

  async function bodyOf(number) {
    const pack = packOf(number);
    return pack && (await unpacked(pack))[number - Number(pack.dataset.first)];
  }

  async function fill(row, number) {
    if (row.dataset.state) return;
    row.dataset.state = "asked";
    const body = await bodyOf(number);
    if (body) {
      const made = document.createElement("template");
      made.innerHTML = body; // written and escaped by the page's author; the policy lets no script in it run
      row.append(made.content);
    } else {
      row.append(element("p", "soft", "Left out, to keep the page small."));
    }
    row.dataset.state = "there";
  }

  function prompt(button) {
    const turn = button.closest(".turn");
    const shown = turn.querySelector(".prompts");
    button.setAttribute("aria-expanded", String(!shown));
    if (shown) return shown.remove();
    const chat = turn.closest(".body").querySelectorAll(".chat > div");
    const own = button.dataset.prompt;
    const source = own === undefined ? chat[0] : Array.from(chat).find((each) => each.dataset.prompt === own);
    const messages = Array.from(source.children).slice(0, own === undefined ? Number(button.dataset.messages) : undefined);
    const box = element("div", "prompts");
    for (const message of messages) box.append(message.cloneNode(true));
    turn.querySelector("h4").after(box);
  }

  // Rows

  function drawRow(number) {
    const row = element("details", "row"), head = element("summary");
    row.id = "row-" + number;
    for (const part of rows[number][1]) {
      const [words, kind] = Array.isArray(part) ? part : [part, ""];
      head.append(element("span", kind, words), " ");
    }
    row.append(head);
    row.addEventListener("toggle", () => row.open && fill(row, number));
    return row;
  }

  function drawMore() {
    const until = Math.min(matching.length, drawn + AT_ONCE);
    for (; drawn < until; drawn++) list.append(drawRow(matching[drawn]));
    tellMore();
  }

  function tellMore() {
    const left = matching.length - drawn;
    more.hidden = left <= 0;
    more.textContent = "show " + Math.min(AT_ONCE, left) + " more of " + left;
  }

  function fits(number, wanted) {
    return wanted.every((value, at) => {
      const has = rows[number][0][at];
      return !value || (Array.isArray(has) ? has.includes(value) : has === value);
    });
  }

  function headOf(number) {
    return rows[number][1].map((part) => (Array.isArray(part) ? part[0] : part)).join(" ").toLowerCase();
  }

  async function withWords(numbers, words, mine) {
    const found = [];
    for (const number of numbers) {
      let text = headOf(number);
      if (!text.includes(words)) text = ((await bodyOf(number)) || "").replace(/<[^>]*>/g, " ");
      if (mine !== asking) return null;
      const plain = text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&quot;/g, '"').replace(/&#x27;/g, "'").replace(/&amp;/g, "&");
      if (plain.toLowerCase().includes(words)) found.push(number);
    }
    return found;
  }

  const ORDERS = { "": "as played", "reward -1": "highest reward", "reward 1": "lowest reward", "turn -1": "most turns" };

  function sorted(numbers) {
    const [word, way] = order.value.split(" ");
    if (!word) return numbers;
    const sizes = new Map(numbers.map((number) => [number, sizeOf(number, word)]));
    return numbers.sort((one, other) => way * (sizes.get(one) - sizes.get(other)) || one - other);
  }

  function sizeOf(number, word) {
    const pattern = word === "reward" ? /^reward (\S+)$/ : /^(\d+) turns?$/;
    for (const part of rows[number][1]) {
      const found = pattern.exec(Array.isArray(part) ? part[0] : part);
      if (found) return Number(found[1]);
    }
    return 0;
  }

  async function apply() {
    const mine = ++asking;
    const wanted = selects.map((select) => select.value);
    let numbers = rows.map((_, number) => number).filter((number) => fits(number, wanted));
    const words = search.value.trim().toLowerCase();
    if (words) {
      count.textContent = "searching ..";
      numbers = await withWords(numbers, words, mine);
      if (numbers === null) return;
    }
    matching = sorted(numbers);
    list.replaceChildren();
    drawn = 0;
    drawMore();
    tell();
  }

  function tell() {
    count.textContent = matching.length + " of " + rows.length + " trajectories";
  }

  // Filters

  const form = element("form", "filters"), count = element("span", "soft count"), list = element("div");
  const more = element("button", "more");
  more.type = "button";
  const selects = index.filters.map(([name, label]) => {
    const select = document.createElement("select");
    select.name = name;
    select.append(new Option("all", ""));
    labelled(label, select);
    return select;
  });
  const search = document.createElement("input");
  search.type = "search";
  search.name = "words";
  labelled("Text", search);
  const order = document.createElement("select");
  order.name = "order";
  for (const [value, words] of Object.entries(ORDERS)) order.append(new Option(words, value));
  labelled("Order", order);
  form.append(count);
  holder.replaceChildren(form, list, more);

  function labelled(words, field) {
    const label = element("label", "", words);
    label.append(document.createElement("br"), field);
    form.append(label);
  }

  const known = selects.map(() => new Set());

  function learn(row) {
    row[0].forEach((value, at) => {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (!each || known[at].has(each)) continue;
        known[at].add(each);
        selects[at].append(new Option(index.filters[at][2][each] || each, each));
        selects[at].parentNode.hidden = known[at].size < 2 && !Array.isArray(value);
      }
    });
  }

  selects.forEach((select) => { select.parentNode.hidden = true; });
  rows.forEach(learn);

  let pause = 0;
  form.addEventListener("input", (event) => {
    clearTimeout(pause);
    pause = setTimeout(apply, event.target === search ? 300 : 0);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", drawMore);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.prompt");
    if (button) prompt(button);
  });
  apply();
})();
