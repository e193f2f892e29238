// Unpacks the dialogues (analysis/transcripts.py), filters them, and draws those in sight. Words reach the page as text nodes alone.
"use strict";
(async () => {
  const ROW = 52, BANDS = [10, 40, 70], SVG = "http://www.w3.org/2000/svg";
  const at = (id) => document.getElementById(id);
  const about = JSON.parse(at("about").textContent);
  const list = at("list"), rows = at("rows"), detail = at("detail"), form = at("filters");

  async function unpack() {
    const bytes = Uint8Array.from(atob(at("data").textContent.trim()), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }

  const isUser = (turn) => turn.speaker === "user";
  const dialogues = (await unpack()).map((record, index) => {
    const [intention, persona] = record.family.split("/");
    const course = record.turns.filter((turn) => isUser(turn) && typeof turn.emotion === "number").map((turn) => turn.emotion);
    return { ...record, ...record.difficulty, index, intention, persona, course, start: course.length ? course[0] : record.emotion };
  });
  const kin = new Map();
  for (const d of dialogues) kin.set(d.uid ?? `alone ${d.index}`, [...(kin.get(d.uid ?? `alone ${d.index}`) ?? []), d]);

  let shown = [], chosen = null;

  function element(name, classes = "", words = "") {
    const made = document.createElement(name);
    if (classes) made.className = classes;
    if (words !== "") made.textContent = words;
    return made;
  }

  function drawn(name, attributes, ...inner) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inner);
    return made;
  }

  const plain = (words) => words.replaceAll("_", " ");
  const signed = (change) => `${change > 0 ? "▲ +" : change < 0 ? "▼ −" : "= "}${Math.abs(change)}`;
  const direction = (change) => (change > 0 ? "up" : change < 0 ? "down" : "same");

  function curve(values, width, height, { bands = false } = {}) {
    const left = bands ? 26 : 3, x = (i) => left + (width - left - 6) * (values.length > 1 ? i / (values.length - 1) : 0);
    const y = (value) => height - 5 - (height - 10) * value / 100;
    const label = `emotion ${values.join(", ")}`;
    const made = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: bands ? "course" : "spark" });
    if (bands) for (const bound of [0, ...BANDS, 100]) {
      made.append(drawn("line", { class: "grid", x1: left, x2: width - 4, y1: y(bound), y2: y(bound) }));
      made.append(drawn("text", { x: left - 5, y: y(bound) + 3.5, "text-anchor": "end" }, String(bound)));
    }
    made.append(drawn("polyline", { class: "line a", points: values.map((value, i) => `${x(i)},${y(value)}`).join(" ") }));
    const dots = bands ? values : values.slice(-1);
    dots.forEach((value, i) => {
      const place = bands ? i : values.length - 1;
      const dot = drawn("circle", { class: "dot a", cx: x(place), cy: y(value), r: bands ? 3.5 : 2.5 });
      if (bands) dot.append(drawn("title", {}, `${value} after ${i} ${i === 1 ? "reply" : "replies"}`));
      made.append(dot);
    });
    return made;
  }

  // --- filters ---------------------------------------------------------------------------------------------------------------------

  function offer(id, values) {
    for (const value of [...new Set(values)].sort()) {
      const option = element("option", "", plain(value));
      option.value = value;
      at(id).append(option);
    }
  }

  function haystack(d) {
    d.words ??= [d.scenario_id, d.uid ?? "", ...d.turns.flatMap((turn) => [turn.text, turn.thought ?? ""])]
      .join("\n").toLowerCase();
    return d.words;
  }

  function number(id, otherwise) {
    const value = parseFloat(at(id).value);
    return Number.isNaN(value) ? otherwise : value;
  }

  const ORDERS = {
    played: (a, b) => a.index - b.index,
    low: (a, b) => a.emotion - b.emotion || a.index - b.index,
    high: (a, b) => b.emotion - a.emotion || a.index - b.index,
    rise: (a, b) => (b.emotion - b.start) - (a.emotion - a.start) || a.index - b.index,
    strict: (a, b) => b.strictness - a.strictness || a.index - b.index,
  };

  function select() {
    const wanted = at("search").value.trim().toLowerCase();
    const picks = ["kind", "intention", "persona", "outcome"].map((name) => [name, at(name).value]).filter(([, value]) => value);
    const strictness = [number("strictness-from", 0) - 1e-9, number("strictness-to", 1) + 1e-9];
    const steps = [number("step-from", -Infinity), number("step-to", Infinity)];
    shown = dialogues.filter((d) =>
      picks.every(([name, value]) => d[name] === value) &&
      d.strictness >= strictness[0] && d.strictness <= strictness[1] && d.step >= steps[0] && d.step <= steps[1] &&
      (!wanted || haystack(d).includes(wanted)));
    shown.sort(ORDERS[at("order").value]);
    rows.style.height = `${shown.length * ROW}px`;
    tally();
    if (!shown.includes(chosen)) choose(shown[0] ?? null);
    else { reveal(); draw(); }
  }

  function tally() {
    const share = (value) => `${Math.round(100 * value)}%`;
    const judged = shown.filter((d) => d.outcome !== "error");
    const count = (outcome) => judged.filter((d) => d.outcome === outcome).length / judged.length;
    const broke = shown.length - judged.length;
    const mean = judged.reduce((sum, d) => sum + d.emotion, 0) / judged.length;
    at("tally").textContent = shown.length
      ? `${shown.length.toLocaleString("en")} of ${dialogues.length.toLocaleString("en")} dialogues` +
        (broke ? `; ${broke.toLocaleString("en")} broke and ${broke === 1 ? "counts" : "count"} nowhere` : "") +
        (judged.length ? `; mean final emotion ${mean.toFixed(1)}; ${share(count("delighted"))} delighted, ${share(count("left"))} left` : "")
      : `None of ${dialogues.length.toLocaleString("en")} dialogues is like that.`;
  }

  // --- the list: only the rows in sight are in the page ------------------------------------------------------------------------------

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
    const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
    rows.replaceChildren(...shown.slice(first, last).map((d, i) => row(d, first + i)));
  }

  function row(d, place) {
    const made = element("div", d === chosen ? "row chosen" : "row");
    made.id = `row-${d.index}`;
    made.style.top = `${place * ROW}px`;
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", String(d === chosen));
    made.setAttribute("aria-posinset", String(place + 1));
    made.setAttribute("aria-setsize", String(shown.length));
    const words = element("div", "words");
    words.append(element("b", "", plain(d.scenario_id.split("/")[1] ?? d.scenario_id)));
    words.append(element("small", "", `${plain(d.family)} · ${d.strictness.toFixed(2)} · ${d.kind} ${d.step}`));
    const end = element("div", "end");
    end.append(element("b", "", String(d.emotion)), element("small", "", plain(d.outcome ?? "not ended")));
    made.append(curve(d.course, 74, 34), words, end);
    made.title = `${d.scenario_id}, ${plain(d.family)}, strictness ${d.strictness.toFixed(2)}, ${d.kind}, step ${d.step}`;
    made.addEventListener("click", () => choose(d));
    return made;
  }

  function reveal() {
    const place = shown.indexOf(chosen);
    if (place < 0) return;
    if (place * ROW < list.scrollTop) list.scrollTop = place * ROW;
    if ((place + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (place + 1) * ROW - list.clientHeight;
  }

  function choose(d) {
    chosen = d;
    if (d) {
      list.setAttribute("aria-activedescendant", `row-${d.index}`);
      history.replaceState(null, "", `#${d.index}`);
    }
    reveal();
    draw();
    show();
  }

  function move(by) {
    if (!shown.length) return;
    const place = Math.min(shown.length - 1, Math.max(0, shown.indexOf(chosen) + by));
    choose(shown[place]);
  }

  // --- one dialogue ------------------------------------------------------------------------------------------------------------------

  function show() {
    detail.replaceChildren();
    if (!chosen) return;
    const d = chosen, head = element("header");
    head.append(element("h2", "", d.scenario_id));
    const where = [d.kind, `step ${d.step}`, d.mode, d.uid, d.sibling == null ? null : `rollout ${d.sibling}`, `seed ${d.seed}`];
    head.append(element("p", "note", where.filter((part) => part !== null && part !== undefined && part !== "").join(" · ")));
    head.append(element("p", "note", `${plain(d.family)} · strictness ${d.strictness.toFixed(3)}, reserve ${d.reserve.toFixed(3)}, ` +
      `impatience ${d.impatience.toFixed(3)}`));
    const wish = element("p");
    wish.append(element("b", "", "Hidden wish, which the agent is never shown: "), document.createTextNode(d.hidden_intention));
    head.append(wish, curve(d.course, 640, 150, { bands: true }));
    head.append(element("p", "note", `emotion ${d.start} → ${d.emotion}; ${about.endings[d.outcome] ?? d.outcome ?? "it has not ended"}`));
    const siblings = kin.get(d.uid ?? `alone ${d.index}`);
    if (siblings.length > 1) head.append(relatives(siblings, d));
    const article = element("article", "transcript");
    article.append(...d.turns.map(turn));
    detail.append(head, article);
    if (d.error) detail.append(element("pre", "", d.error));
    const quoted = /^[\w:\/@.+-]+$/;
    const word = (value) => (quoted.test(value) ? value : `'${value.replaceAll("'", "'\\''")}'`);
    // Only the embedded user's changes can be computed again, and of the built-in scenarios.
    if (d.uid && about.by_rule && !d.scenario_id.startsWith("sage/")) {
      const sibling = d.sibling == null ? "" : ` --sibling ${d.sibling}`;
      detail.append(element("p", "note", "The five steps to each change, with every figure:"),
        element("pre", "", `python -m simulator explain ${word(about.run)} --uid ${word(d.uid)}${sibling} --step ${d.step}`));
    }
    detail.scrollTop = 0;
  }

  function relatives(siblings, d) {
    const made = element("p", "relatives");
    made.append(element("span", "note", d.kind === "train" ? "this group: " : "this user at other steps: "));
    for (const other of siblings) {
      const button = element("button", other === d ? "chosen" : "", d.kind === "train" ? `${other.emotion}` : `${other.step}: ${other.emotion}`);
      button.type = "button";
      button.title = d.kind === "train" ? `rollout ${other.sibling}, final emotion ${other.emotion}` : `step ${other.step}`;
      if (other === d) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => { choose(other); detail.focus(); });
      made.append(button);
    }
    return made;
  }

  function turn(said) {
    const made = element("div", `turn ${said.speaker}`), who = element("p", "who", isUser(said) ? "user " : "agent");
    made.append(who);
    if (typeof said.emotion === "number") who.append(element("span", "emotion", String(said.emotion)));
    if (typeof said.change === "number") who.append(" ", element("span", direction(said.change), signed(said.change)));
    if (said.thought && at("thoughts").checked) made.append(element("p", "thought", said.thought));
    if (said.heard?.length && at("heard").checked) {
      const line = element("p", "heard", "heard: ");
      line.append(...said.heard.map((strategy) => element("span", "", plain(strategy))));
      made.append(line);
    }
    if (said.steps) made.append(stepwise(said.steps));
    made.append(marked(said.text));
    return made;
  }

  function stepwise(steps) {
    const made = element("details"), items = element("ol");
    made.append(element("summary", "", "the five steps"), items);
    steps.forEach((step, i) => {
      const item = element("li");
      item.append(element("b", "", `${about.steps[i]}: `), step);
      items.append(item);
    });
    return made;
  }

  function marked(words) {
    const made = element("p", "said"), wanted = at("search").value.trim().toLowerCase(), low = words.toLowerCase();
    let from = 0;
    // Lower case can be longer than what it is of (İ); the places would not be the same then.
    for (let to = wanted && low.length === words.length ? low.indexOf(wanted) : -1; to >= 0; to = low.indexOf(wanted, from)) {
      made.append(words.slice(from, to), element("mark", "", words.slice(to, to + wanted.length)));
      from = to + wanted.length;
    }
    made.append(words.slice(from));
    return made;
  }

  // --- keys --------------------------------------------------------------------------------------------------------------------------

  const page = () => Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
  const KEYS = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1),
    PageDown: () => move(page()), PageUp: () => move(-page()), Home: () => move(-shown.length), End: () => move(shown.length),
    "/": () => at("search").focus(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("form")) {
      if (event.key === "Escape") list.focus();
      return;
    }
    const isMove = event.key !== "/" && event.key.length > 1;
    if (!KEYS[event.key] || (isMove && detail.contains(event.target))) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  let waiting = 0;
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    if (event.target.type === "checkbox") show();
    else if (event.target.id === "order") { select(); choose(shown[0] ?? null); }
    else waiting = setTimeout(() => { select(); show(); }, event.target.id === "search" ? 120 : 0);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { select(); show(); }));
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  window.addEventListener("resize", draw);

  offer("kind", dialogues.map((d) => d.kind));
  offer("intention", dialogues.map((d) => d.intention));
  offer("persona", dialogues.map((d) => d.persona));
  offer("outcome", dialogues.map((d) => d.outcome).filter((outcome) => outcome));
  const asked = dialogues[parseInt(location.hash.slice(1), 10)];
  chosen = asked ?? null;
  select();
  show();
})();
