// The page of the inspector. What a server wrote comes as HTML that is escaped, or as text; none of it runs.
(() => {
  const { forms } = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const [body, fields, wrong, said, rows] = ["body", "fields", "wrong", "said", "rows"].map(at);
  const MOST_ROWS = 200;
  const HEADS = [...rows.tHead.rows[0].cells].map((cell) => cell.textContent);

  function make(tag, text, attributes = {}) {
    const made = Object.assign(document.createElement(tag), attributes);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  async function ask(path, wanted) {
    const answer = await fetch(path, wanted && { method: "POST", body: JSON.stringify(wanted) });
    const read = await answer.json();
    if (!answer.ok) throw new Error(read.error || answer.statusText);
    return read;
  }

  const saying = (place, doing) => doing().catch((error) => { place.textContent = error.message; });

  // The form and the body, each written from the other.

  let form = forms[0];
  let inputs = new Map();

  function get(value, keys) {
    for (const key of keys) value = value === null || typeof value !== "object" ? undefined : value[key];
    return value;
  }

  function put(value, [key, ...rest], wanted) {
    if (rest.length) {
      if (value[key] === null || typeof value[key] !== "object") {
        if (wanted === undefined) return;
        value[key] = {};
      }
      put(value[key], rest, wanted);
      if (!Object.keys(value[key]).length) delete value[key];
    } else if (wanted === undefined) delete value[key];
    else value[key] = wanted;
  }

  function read() {
    try {
      const value = JSON.parse(body.value);
      wrong.textContent = "";
      body.setAttribute("aria-invalid", "false");
      return value && typeof value === "object" && !Array.isArray(value) ? value : null;
    } catch (error) {
      wrong.textContent = `not JSON, and sent unchanged: ${error.message}`;
      body.setAttribute("aria-invalid", "true");
      return null;
    }
  }

  // A list of numbers stands on one line; within a string, a line break is escaped.
  const NUMBERS = /\[\n\s*(-?[\d.eE+-]+(?:,\n\s*-?[\d.eE+-]+)*)\n\s*\]/g;
  const written = (value) => JSON.stringify(value, null, 1).replace(NUMBERS, (_, list) => `[${list.replace(/,\n\s*/g, ", ")}]`);
  const write = (value) => { body.value = written(value); fill(); };

  function fill() {
    const value = read();
    for (const [field, input] of value ? inputs : []) {
      const there = get(value, field.at);
      const words = field.plain && typeof there === "string" ? there : JSON.stringify(there);
      if (input !== document.activeElement) input.value = there === undefined ? "" : words;
      input.closest(".field").classList.toggle("said", there !== undefined);
    }
  }

  function changed(field, input) {
    const value = read() || {};
    let wanted = input.value === "" ? undefined : input.value;
    input.setAttribute("aria-invalid", "false");
    if (wanted !== undefined && !field.plain) {
      try {
        wanted = JSON.parse(wanted);
      } catch {
        if (field.kind === "strings") wanted = [wanted];
        else return input.setAttribute("aria-invalid", "true");
      }
    }
    put(value, field.at, wanted);
    write(value);
  }

  function inputOf(field, id) {
    if (field.kind === "boolean") {
      const made = make("select", undefined, { id });
      made.append(...["", "true", "false"].map((value) => make("option", value || "unset", { value })));
      return made;
    }
    const number = field.kind === "integer" || field.kind === "number";
    const made = make("input", undefined, { id, type: number ? "number" : "text", autocomplete: "off" });
    if (number) made.step = field.kind === "integer" ? 1 : "any";
    if (number && field.least !== null) made.min = field.least;
    if (field.default !== null) made.placeholder = `default ${JSON.stringify(field.default)}`;
    return made;
  }

  function choose(name) {
    form = forms.find((known) => known.dialect === name) || forms[0];
    at("dialect").value = form.dialect;
    inputs = new Map();
    fields.replaceChildren(...form.fields.map((field, number) => {
      const made = make("div", undefined, { className: "field" });
      const input = inputOf(field, `field-${number}`);
      const label = make("label", undefined, { htmlFor: input.id, title: field.name });
      for (const part of field.at.join(".").split(/(?<=[._])/)) label.append(part, make("wbr"));
      const words = make("p", `${field.type}${field.type && field.says ? " · " : ""}${field.says}`, { id: `${input.id}-says` });
      input.setAttribute("aria-describedby", words.id);
      input.addEventListener("change", () => changed(field, input));
      inputs.set(field, input);
      made.append(label, input, words);
      return made;
    }));
  }

  at("find").addEventListener("input", () => {
    const wanted = at("find").value.toLowerCase();
    for (const field of fields.children) field.hidden = !field.textContent.toLowerCase().includes(wanted);
  });
  at("dialect").addEventListener("change", () => { choose(at("dialect").value); write(form.body); });
  at("preset").addEventListener("focus", () => saying(said, async () => {
    if (at("presets").childElementCount) return;
    said.textContent = "the scenarios are rehearsed …";
    const names = await ask("presets");
    at("presets").replaceChildren(...names.map((value) => make("option", undefined, { value })));
    said.textContent = `${names.length} requests to choose from: type a part of a name`;
  }));
  at("preset").addEventListener("change", () => saying(said, async () => {
    const name = at("preset").value;
    if (!name) return;
    const preset = await ask(`preset/${encodeURI(name)}`);
    choose((forms.find((known) => known.path === preset.path && name.startsWith(`${known.dialect}/`)) || form).dialect);
    write(preset.body);
    said.textContent = "";
  }));
  body.addEventListener("input", fill);

  // What is sent, and what is shown of it.

  function variants() {
    const as = { dialect: form.dialect, body: body.value, to: "target" };
    const field = (name) => form.fields.find((known) => known.name === name);
    const other = (name, value) => {
      const copy = JSON.parse(body.value);
      if (!field(name)) throw new Error(`${form.dialect} has no field ${name}`);
      put(copy, field(name).at, value);
      return { ...as, body: JSON.stringify(copy) };
    };
    switch (at("twice").value) {
      case "whole": return [other("stream", true), other("stream", undefined)];
      case "interval": return [other("stream_interval", 1), other("stream_interval", 8)];
      case "worker": case "twin": return [as, { ...as, to: at("twice").value }];
    }
    return [as];
  }

  at("send").addEventListener("click", () => saying(said, async () => {
    const pair = variants();
    const times = Math.max(1, Math.min(500, Number(at("times").value) || 1));
    const numbers = await ask("send", { requests: Array.from({ length: times }, () => pair).flat() });
    said.textContent = `sent ${numbers.length === 1 ? `request ${numbers[0]}` : `${numbers.length} requests`}`;
    show(numbers[0], pair.length > 1 ? numbers[1] : null);
    at("asked").scrollIntoView({ block: "start" });
  }));

  let source = null;
  let shown = null, beside = null, player = null;

  function listen() {
    if (source) source.close();
    source = new EventSource(`events?show=${shown || ""}&beside=${beside || ""}`);
    source.onopen = () => { at("lost").textContent = ""; pending = nothing(); rows.tBodies[0].replaceChildren(); lines.clear(); };
    source.onerror = () => { at("lost").textContent = "tokenwire inspect has ended, or cannot be reached"; };
    source.onmessage = (event) => {
      const news = JSON.parse(event.data);
      for (const row of news.rows) pending.rows.set(row.number, row);
      for (const number of news.gone) { pending.gone.push(number); pending.rows.delete(number); }
      pending.view = news.view || pending.view;
      requestAnimationFrame(flush);
    };
  }

  // What is new is shown once a frame, and not while a button is pressed: it would be gone before the click.
  const nothing = () => ({ rows: new Map(), gone: [], view: null });
  let pending = nothing();
  let pressed = false;

  function flush() {
    if (pressed) return;
    const news = pending;
    pending = nothing();
    const oldest = Math.max(0, ...lines.keys(), ...news.rows.keys()) - MOST_ROWS;
    for (const row of news.rows.values()) if (row.number > oldest) line(row);
    for (const number of [...news.gone, ...[...lines.keys()].filter((known) => known <= oldest)]) {
      if (lines.has(number)) lines.get(number).remove();
      lines.delete(number);
    }
    at("empty").hidden = lines.size > 0;
    if (news.view) view(news.view);
  }

  const released = () => setTimeout(() => { pressed = false; flush(); });
  document.addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, released);

  const lines = new Map();

  function line(row) {
    const made = make("tr");
    made.classList.toggle("now", row.number === shown || row.number === beside);
    const time = (seconds) => (seconds === null ? "" : `${(1000 * seconds).toFixed(0)} ms`);
    const none = row.open ? "nothing so far" : "nothing";
    const violated = row.violated ? (row.violated.length ? row.violated.join(", ") : none) : "";
    const state = `${row.state}${row.status && row.status !== 200 ? ` ${row.status}` : ""}${row.to === "target" ? "" : `, ${row.to}`}`;
    const last = make("td");
    const button = (words, does, aria) => {
      const made = make("button", words, { type: "button", onclick: does });
      made.setAttribute("aria-label", aria);
      last.append(made);
    };
    button("show", () => show(row.number, null), `show request ${row.number}`);
    if (shown !== null && shown !== row.number) button("beside", () => show(shown, row.number), `show request ${row.number} beside request ${shown}`);
    if (row.open) {
      button("stop", () => saying(said, () => ask("stop", { number: row.number })), `stop request ${row.number}`);
      button("abort", () => saying(said, async () => { said.textContent = await ask("abort", { number: row.number }); }), `abort request ${row.number} by its id`);
    }
    const number = (text) => make("td", text, { className: "number" });
    made.append(
      make("td", `${row.number} ${row.path}`), make("td", state), number(row.tokens || row.characters || ""),
      number(time(row.first)), number(time(row.seconds)),
      make("td", violated, { className: row.violated && row.violated.length ? "FAIL" : "" }), last,
    );
    made.setAttribute("role", "row");
    [...made.children].forEach((cell, index) => { cell.setAttribute("role", "cell"); cell.dataset.name = HEADS[index]; });
    const known = lines.get(row.number);
    const focused = known && known.contains(document.activeElement) && document.activeElement.textContent;
    if (known) known.replaceWith(made);
    else rows.tBodies[0].prepend(made);
    lines.set(row.number, made);
    if (focused) [...last.children].find((known) => known.textContent === focused)?.focus();
  }

  function show(number, other) {
    [shown, beside, player] = [number, other, null];
    at("answer-section").hidden = false;
    at("shown").textContent = other === null ? `Answer to request ${number}` : `Request ${number} beside request ${other}`;
    at("kept").hidden = true;
    at("kept-said").textContent = "";
    at("answer").replaceChildren();
    listen();
  }

  function view({ html, playback }) {
    const place = at("answer");
    const picked = player && player.picked ? player.playback.steps[player.at].event : null;
    const active = place.contains(document.activeElement) ? document.activeElement : null;
    const open = new Map([...place.querySelectorAll("details")].map((known) => [known.id, known.open]));
    const scrolled = [...place.querySelectorAll("pre, .wide-table")].map((known) => known.scrollTop);
    const written = new DOMParser().parseFromString(html, "text/html");
    place.replaceChildren(...written.body.childNodes);
    for (const details of place.querySelectorAll("details")) if (open.has(details.id)) details.open = open.get(details.id);
    const section = place.querySelector(".player");
    player = section && playback ? play(section, playback) : null;
    const again = picked === null || !player ? -1 : playback.steps.findIndex((step) => step.event === picked);
    if (again >= 0) player.show(again, true);
    [...place.querySelectorAll("pre, .wide-table")].forEach((known, number) => { known.scrollTop = scrolled[number] || 0; });
    if (active) {
      const alike = (known) => known.tagName === active.tagName && known.getAttribute("aria-label") === active.getAttribute("aria-label") && known.textContent === active.textContent;
      [...place.querySelectorAll("input, button, a, summary, [tabindex]")].find(alike)?.focus({ preventScroll: true });
    }
  }

  at("keep").addEventListener("click", () => saying(at("kept-said"), async () => {
    const numbers = beside === null ? [shown] : [shown, beside];
    const kept = await ask("keep", { numbers, name: at("name").value });
    at("kept-said").textContent = "kept; run it:";
    at("kept").textContent = kept.join("\n");
    at("kept").hidden = false;
  }));

  choose(forms[0].dialect);
  write(form.body);
  listen();
})();
