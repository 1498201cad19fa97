"use strict";
// Walks through the events of an answer. All it shows was decided when the page was written; it is put there
// as text, never as markup. A page with playbacks has its players made at once; others call `play`.
const play = (() => {
  const aloud = {
    hole: "missing", later: "not yet delivered", double: "delivered twice", extra: "too many",
    differs: "different", shift: "at another index",
  };
  const marks = { hole: "○", double: "×2 ", extra: "+ ", differs: "≠ " };

  function make(tag, name, text) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function cellOf(cell) {
    if (cell === null) return make("td", "none", "");
    const [words, state, step] = cell;
    const made = make("td", state, (marks[state] || "") + words);
    if (aloud[state]) {
      made.title = aloud[state];
      made.append(make("span", "aloud", ` (${aloud[state]})`));
    }
    if (step !== undefined) made.dataset.step = step;
    return made;
  }

  function ribbonOf(ribbon) {
    const faults = ribbon.rows.filter((row) => row.faults).map((row) => `${row.name}: ${row.faults}`);
    const words = faults.join(". ");
    const table = make("table", "ribbon");
    const head = table.createTHead().insertRow();
    head.append(make("th", "", ribbon.unit));
    for (const column of ribbon.columns) head.append(make("th", "", column === null ? "·" : column));
    const body = table.createTBody();
    for (const row of ribbon.rows) {
      const line = body.insertRow();
      const name = make("th", "", row.name);
      name.scope = "row";
      line.append(name, ...row.cells.map(cellOf));
    }
    const left = ribbon.before + ribbon.after;
    const frame = make("div", "scroll");
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", [`${ribbon.unit}s by position`, ...faults].join(": "));
    frame.append(table);
    const all = document.createDocumentFragment();
    const cut = left ? `${words ? " (" : "("}${ribbon.before} columns before and ${ribbon.after} behind are left out)` : "";
    if (words + cut) all.append(make("p", "faults", words + cut));
    all.append(frame);
    return all;
  }

  class Player {
    constructor(section, playback) {
      this.section = section;
      this.playback = playback;
      this.slider = section.querySelector("input");
      this.circles = [...section.querySelectorAll("circle")];
      const svg = section.querySelector("svg");
      if (svg) {
        this.cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
        this.cursor.setAttribute("class", "cursor");
        this.cursor.setAttribute("y1", 12);
        this.cursor.setAttribute("y2", svg.viewBox.baseVal.height - 28);
        svg.append(this.cursor);
        const scrub = (event) => {
          const x = ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth) * svg.viewBox.baseVal.width;
          const away = this.circles.map((circle) => Math.abs(circle.cx.baseVal.value - x));
          this.show(away.indexOf(Math.min(...away)), true);
        };
        svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); scrub(event); });
        svg.addEventListener("pointermove", (event) => { if (event.buttons) scrub(event); });
      }
      const single = this.playback.steps.length === 1;
      section.querySelector(".controls").hidden = section.querySelector(".hint").hidden = single;
      this.walk = section.querySelector(".walk");
      this.walk.hidden = section.querySelector(".ribbons").hidden = false;
      this.slider.addEventListener("input", () => this.show(Number(this.slider.value), true));
      for (const button of section.querySelectorAll("[data-go]")) {
        button.addEventListener("click", () => this.go(Number(button.dataset.go)));
      }
      section.addEventListener("focusin", () => { active = this; });
      section.querySelector(".ribbons").append(...this.playback.ribbons.map(ribbonOf));
      section.querySelector(".ribbons").addEventListener("click", (event) => {
        const cell = event.target.closest("[data-step]");
        if (cell) this.show(Number(cell.dataset.step), true);
      });
      this.cells = [...section.querySelectorAll("[data-step]")];
      this.show(this.playback.first, false);
    }

    go(steps) {
      this.show(Math.max(0, Math.min(this.playback.steps.length - 1, this.at + steps)), true);
    }

    show(at, wanted) {
      this.picked = wanted || Boolean(this.picked);
      const step = this.playback.steps[at];
      this.at = at;
      this.walk.open ||= wanted;
      const words = `event ${step.event}, ${step.words}${step.illegal ? ", illegal" : ""}`;
      this.slider.value = at;
      this.slider.setAttribute("aria-valuetext", words);
      this.section.classList.toggle("wrong", step.illegal);
      this.section.querySelector("output").textContent = words;
      if (this.cursor && this.circles[at]) {
        for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.circles[at].cx.baseVal.value);
      }
      this.section.querySelector(".pointer").textContent = step.pointer;
      const [before, marked, behind] = step.json;
      const json = this.section.querySelector(".event pre");
      json.replaceChildren(before, make("mark", "", marked), behind);
      const mark = json.querySelector("mark");
      if (marked) json.scrollTop = mark.offsetTop - json.clientHeight / 2;
      else mark.remove();
      const held = step.held.flatMap(([name, value]) => [make("dt", "", name), make("dd", "mono", value)]);
      this.section.querySelector(".holds dl").replaceChildren(...held);
      this.section.querySelector(".holds").hidden = !held.length;
      for (const cell of this.cells) {
        cell.classList.toggle("now", Number(cell.dataset.step) === at);
        cell.classList.toggle("unread", Number(cell.dataset.step) > at);
      }
      for (const frame of this.section.querySelectorAll(".scroll")) {
        const now = frame.querySelector(".now");
        if (now) frame.scrollLeft = now.offsetLeft - frame.clientWidth / 2;
      }
      const link = `#${this.section.dataset.link}/${step.event}`;
      this.section.querySelector(".here").href = link;
      if (wanted) this.name(link);
    }

    name(link) {
      active = this;
      clearTimeout(this.later);  // browsers refuse an address that changes too often
      this.later = setTimeout(() => window.location.replace(link), 120);
    }
  }

  let active = null;
  let players = [];

  function play(section, playback) {
    const player = new Player(section, playback);
    players = [...players.filter((known) => known.section.isConnected), player];
    if (active && !active.section.isConnected) active = player;
    return player;
  }

  function follow() {
    const [, link, event] = window.location.hash.match(/^#(.*)\/(\d+)$/) || [];
    const player = players.find((each) => each.section.dataset.link === link);
    if (!player) return;
    const named = player.playback.steps.findIndex((step) => step.event === Number(event));
    const at = named < 0 ? player.playback.first : named;
    const known = player === active && player.at === at;
    active = player;
    if (known) return;
    player.show(at, false);
    player.walk.open = true;
    for (let up = player.section; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    player.section.scrollIntoView({ block: "start" });
    player.slider.focus({ preventScroll: true });
  }

  // A button beside the answer leads to one of its events.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-event]");
    const player = button && players.find((known) => known.section.isConnected);
    const step = player ? player.playback.steps.findIndex((known) => known.event === Number(button.dataset.event)) : -1;
    if (step < 0) return;
    player.show(step, true);
    player.section.scrollIntoView({ block: "nearest" });
  });

  document.addEventListener("keydown", (event) => {
    const player = active || players[0];
    if (!player) return;
    const aside = document.activeElement !== document.body && !player.section.contains(document.activeElement);
    if (aside || event.altKey || event.ctrlKey || event.metaKey) return;
    const last = player.playback.steps.length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last }[event.key];
    const paging = document.activeElement === document.body && (event.key === "Home" || event.key === "End");
    if (steps === undefined || paging) return;
    event.preventDefault();
    player.go(steps);
  });
  const written = document.getElementById("playbacks");
  if (written) {
    const playbacks = JSON.parse(written.textContent);
    for (const section of document.querySelectorAll("[data-play]")) play(section, playbacks[section.dataset.play]);
  }
  window.addEventListener("hashchange", follow);
  follow();
  return play;
})();
