// Controls of the interactive figures, reasons of verdicts, copy buttons. Without this the page has pictures and tables.
const DATA = JSON.parse(document.getElementById("data").textContent);
const live = document.getElementById("live");
const say = (words) => { live.textContent = words; };

const DASHES = { "--": "dashed", "-.": "dotted" };
const swatch = (look) => make("span", { class: `swatch ${DASHES[look.line] || ""}`, style: `--c:${look.colour};--d:${look.dark}` });

class ChartView {
  constructor(figure, spec) {
    Object.assign(this, { figure, spec, zooms: new Map(), sharedX: null });
    this.state = {
      unit: spec.unit, logX: spec.logX, logY: null, view: spec.view, median: true, bands: true, seeds: new Set(),
      methods: new Set(spec.methods.map((_, place) => place).filter((place) => spec.methods[place].on)),
    };
    this.host = make("div", { class: "chart" });
    this.panelsBox = make("div", { class: "panels" });
    const key = spec.key.map(([name, colour, dark]) => make("li", {}, make("span", { class: "swatch dot", style: `--c:${colour};--d:${dark}` }), name));
    this.host.append(this.controls(), key.length ? make("ul", { class: "spots" }, ...key) : "", this.panelsBox);
    figure.querySelector(".static, .none").after(this.host);
    figure.classList.add("drawn");
    this.draw();
    let width = this.panelsBox.clientWidth;
    new ResizeObserver(() => { if (this.panelsBox.clientWidth !== width) { width = this.panelsBox.clientWidth; this.draw(); } }).observe(this.panelsBox);
  }

  zoomOf(panel) {
    return { x: panel.kind === "plane" ? (this.zooms.get(panel) || {}).x : this.sharedX, y: (this.zooms.get(panel) || {}).y };
  }

  resetZoom() { this.zooms.clear(); this.sharedX = null; }

  group(name, ...nodes) {
    return make("fieldset", {}, make("legend", {}, name), ...nodes);
  }

  toggle(words, pressed, act) {
    const button = make("button", { type: "button", "aria-pressed": String(pressed()) }, words);
    button.addEventListener("click", () => { act(); this.draw(); });
    this.toggles.push(() => button.setAttribute("aria-pressed", String(pressed())));
    return button;
  }

  check(label, checked, act, look) {
    const input = make("input", { type: "checkbox" });
    input.checked = checked();
    input.addEventListener("change", () => { act(input.checked); this.draw(); });
    this.toggles.push(() => { input.checked = checked(); });
    return make("label", {}, input, look ? swatch(look) : "", label);
  }

  press(words, act) {
    const button = make("button", { type: "button" }, words);
    button.addEventListener("click", () => { act(); this.draw(); });
    return button;
  }

  controls() {
    const { spec, state } = this;
    this.toggles = [];
    const bar = make("div", { class: "controls" });
    if (spec.views.length > 1) bar.append(this.group("Show", ...spec.views.map((view) => this.toggle(view, () => state.view === view, () => { state.view = view; this.resetZoom(); }))));
    const axis = [];
    if (spec.units.length > 1) for (const [unit, name] of spec.units) axis.push(this.toggle(name, () => state.unit === unit, () => { state.unit = unit; this.resetZoom(); }));
    if (spec.logX !== null) axis.push(this.toggle("Logarithmic", () => state.logX, () => { state.logX = !state.logX; this.resetZoom(); }));
    if (axis.length) bar.append(this.group("Horizontal axis", ...axis));
    if (spec.panels.some((panel) => panel.kind !== "rows" && panel.y.log !== null)) {
      const now = () => (state.logY === null ? spec.panels.some((panel) => panel.y.log) : state.logY);
      bar.append(this.group("Vertical axis", this.toggle("Logarithmic", now, () => { state.logY = !now(); this.resetZoom(); })));
    }
    bar.append(this.group("Zoom", this.press("In", () => this.zoomAll(0.5)), this.press("Out", () => this.zoomAll(2)), this.press("Reset", () => this.resetZoom())));
    const methods = spec.methods.map((look, place) => this.check(look.title, () => state.methods.has(place), (on) => (on ? state.methods.add(place) : state.methods.delete(place)), look));
    const every = [this.press("All", () => spec.methods.forEach((_, place) => state.methods.add(place))), this.press("None", () => state.methods.clear())];
    bar.append(make("details", { open: spec.methods.length <= 10 }, make("summary", {}, `Methods (${spec.methods.length})`), this.group("Methods", ...methods, ...(spec.methods.length > 2 ? every : []))));
    if (spec.seeds.length) {
      const seeds = spec.seeds.map((seed) => this.check(`seed ${seed}`, () => state.seeds.has(seed), (on) => (on ? state.seeds.add(seed) : state.seeds.delete(seed))));
      const all = [this.press("All", () => spec.seeds.forEach((seed) => state.seeds.add(seed))), this.press("None", () => state.seeds.clear())];
      bar.append(make("details", {}, make("summary", {}, "Medians and seeds"), this.group("Medians and seeds", this.check("median", () => state.median, (on) => { state.median = on; }), this.check("middle half of the seeds", () => state.bands, (on) => { state.bands = on; }), ...seeds, ...all)));
    }
    return bar;
  }

  zoomAll(factor) {
    for (const view of this.views) this.zoomView(view, factor, (view.area.left + view.area.right) / 2);
  }

  zoomView(view, factor, centre) {
    const { area } = view;
    const ends = [centre - (centre - area.left) * factor, centre + (area.right - centre) * factor].map((pixel) => view.x.value(pixel));
    this.setX(view, ends);
    if (view.panel.kind === "plane") {
      const middle = (area.top + area.bottom) / 2;
      const y = [middle + (area.bottom - middle) * factor, middle - (middle - area.top) * factor].map((pixel) => view.y.value(pixel));
      this.zooms.set(view.panel, { ...this.zooms.get(view.panel), y });
    }
  }

  setX(view, [low, high]) {
    if (!(high > low) || !Number.isFinite(low) || !Number.isFinite(high)) return;
    if (view.kindX === "log1") low = Math.max(0, low);
    if (view.panel.kind === "plane") this.zooms.set(view.panel, { ...this.zooms.get(view.panel), x: [low, high] });
    else this.sharedX = [low, high];
  }

  draw() {
    for (const update of this.toggles) update();
    const panels = this.spec.panels.filter((panel) => !panel.view || panel.view === this.state.view);
    const wide = panels.length > 1 && (panels.length > 3 || panels.every((panel) => panel.kind === "plane")) && panels[0].kind !== "rows" && this.panelsBox.clientWidth > 800;
    this.panelsBox.classList.toggle("pairs", wide);
    const focused = [...this.panelsBox.children].findIndex((child) => child.contains(document.activeElement));
    this.panelsBox.replaceChildren();
    const parts = panels.map((panel) => {
      const box = make("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "interactive chart" });
      box.setAttribute("aria-label", `${panel.title || this.figure.dataset.title}, ${panel.y.label}. Left and right move along a line, up and down change the line, plus and minus zoom, 0 shows all.`);
      const frame = make("div", { class: "panel" });
      const heading = make("p", { class: "panel-title" }, panel.title ? `${panel.title} ` : "");
      if (panel.kind !== "rows") heading.append(make("span", {}, panel.y.label));
      if (heading.textContent) frame.append(heading);
      const tip = make("div", { class: "tip", hidden: true });
      const holder = make("div", { class: "holder" });
      frame.append(box);
      this.panelsBox.append(frame);
      const view = new PanelView(panel, this, holder, Math.max(280, box.clientWidth));
      box.append(holder, tip);
      frame.append(this.spots(panel));
      return [view, box, tip];
    });
    this.views = parts.map(([view]) => view);
    this.align();
    for (const [view, box, tip] of parts) { view.draw(); this.listen(view, box, tip); }
    if (focused >= 0 && this.panelsBox.children[focused]) this.panelsBox.children[focused].querySelector(".plot").focus();
  }

  // Panels that share an axis have the same range.
  align() {
    const join = (views, low, high) => {
      const ends = [Math.min(...views.map((view) => view.extent[low])), Math.max(...views.map((view) => view.extent[high]))];
      for (const view of views) [view.extent[low], view.extent[high]] = ends;
    };
    const known = this.views.filter((view) => view.lines.length || view.rows.length);
    const level = known.filter((view) => view.panel.kind !== "plane");
    if (level.length) join(level, 0, 1);
    const shared = known.filter((view) => view.panel.y.shared);
    if (shared.length) join(shared, 2, 3);
  }

  spots(panel) {
    const items = panel.spots.filter(([method]) => this.state.methods.has(method)).map(([method, , , words]) => {
      const look = this.spec.methods[method];
      return make("li", {}, swatch(look), words);
    });
    return items.length ? make("ul", { class: "spots" }, ...items) : "";
  }

  listen(view, box, tip) {
    const svg = view.svg;
    let current = null, start = null;
    const show = (found, speak) => {
      current = found;
      const point = found && view.points[found.line][found.place];
      tip.hidden = !point;
      view.cursor.setAttribute("visibility", point ? "visible" : "hidden");
      if (!point) return;
      view.cursor.setAttribute("cx", point.px);
      view.cursor.setAttribute("cy", point.py);
      tip.replaceChildren(...point.text.map((words) => make("div", {}, words)));
      tip.style.left = `${Math.min(Math.max(point.px + 12, 0), Math.max(0, view.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(0, point.py - tip.offsetHeight - 10)}px`;
      if (speak) say(point.text.join(", "));
    };
    const at = (event) => { const frame = svg.getBoundingClientRect(); return [event.clientX - frame.left, event.clientY - frame.top]; };
    svg.addEventListener("pointermove", (event) => {
      const [px, py] = at(event);
      if (!start) { show(view.nearest(px, py)); return; }
      const high = Math.abs(py - start[1]) > 24 && view.panel.kind !== "rows";
      const set = (name, value) => view.drag.setAttribute(name, value);
      set("visibility", "visible"); set("x", Math.min(px, start[0])); set("width", Math.abs(px - start[0]));
      set("y", high ? Math.min(py, start[1]) : view.area.top); set("height", high ? Math.abs(py - start[1]) : view.area.bottom - view.area.top);
    });
    svg.addEventListener("pointerleave", () => { if (!start) show(null); });
    svg.addEventListener("pointerdown", (event) => { if (event.button === 0 && event.pointerType !== "touch") { start = at(event); svg.setPointerCapture(event.pointerId); } });
    svg.addEventListener("pointerup", (event) => {
      const from = start;
      start = null;
      if (!from) return;
      const to = at(event);
      view.drag.setAttribute("visibility", "hidden");
      if (Math.abs(to[0] - from[0]) < 8) return;
      this.setX(view, [Math.min(from[0], to[0]), Math.max(from[0], to[0])].map((pixel) => view.x.value(pixel)));
      if (Math.abs(to[1] - from[1]) > 24 && view.panel.kind !== "rows")
        this.zooms.set(view.panel, { ...this.zooms.get(view.panel), y: [Math.max(from[1], to[1]), Math.min(from[1], to[1])].map((pixel) => view.y.value(pixel)) });
      this.draw();
    });
    svg.addEventListener("dblclick", () => { this.resetZoom(); this.draw(); });
    box.addEventListener("focus", () => { if (!current && view.points.length && box.matches(":focus-visible")) show({ line: 0, place: view.points[0].length - 1 }, true); });
    box.addEventListener("blur", () => show(null));
    box.addEventListener("keydown", (event) => this.key(event, view, current, show));
  }

  key(event, view, current, show) {
    const lines = view.points.length;
    const now = current || { line: 0, place: 0 };
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") show(null);
    else if (event.key === "0") { this.resetZoom(); this.draw(); }
    else if ("+=-".includes(event.key)) {
      const centre = current ? view.points[current.line][current.place].px : (view.area.left + view.area.right) / 2;
      this.zoomView(view, event.key === "-" ? 2 : 0.5, centre);
      this.draw();
    } else if (moves[event.key] && lines) {
      const [down, right] = moves[event.key];
      const line = Math.min(lines - 1, Math.max(0, now.line + down));
      const points = view.points[line];
      let place = Math.min(points.length - 1, Math.max(0, now.place + right));
      if (line !== now.line) { const px = view.points[now.line][now.place].px; place = points.reduce((best, point, each) => (Math.abs(point.px - px) < Math.abs(points[best].px - px) ? each : best), 0); }
      show({ line, place }, true);
    } else return;
    event.preventDefault();
  }
}

function start() {
  document.documentElement.classList.add("js");
  const draw = (figure) => { if (!figure.classList.contains("drawn")) new ChartView(figure, DATA.figures[figure.dataset.chart]); };
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const rest = () => { const next = figures.shift(); if (next) { draw(next); setTimeout(rest); } else document.documentElement.classList.add("ready"); };  // the page stays responsive
  rest();
  reasons();
  for (const button of document.querySelectorAll("button.copy")) button.addEventListener("click", () => copy(button));
}

// The reason of a verdict, on hover and focus; Escape hides it.
function reasons() {
  const tip = make("div", { class: "tip reason", role: "tooltip", id: "reason", hidden: true });
  document.body.append(tip);
  const hide = () => { tip.hidden = true; };
  const show = (button) => {
    tip.textContent = button.dataset.why;
    tip.hidden = false;
    const [own, size] = [button.getBoundingClientRect(), tip.getBoundingClientRect()];
    tip.style.left = `${Math.max(8, Math.min(own.left, document.documentElement.clientWidth - size.width - 8))}px`;
    tip.style.top = `${own.bottom + size.height + 8 < innerHeight ? own.bottom + 4 : Math.max(4, own.top - size.height - 4)}px`;
  };
  for (const button of document.querySelectorAll("button.why")) {
    button.removeAttribute("title");
    button.addEventListener("pointerenter", () => show(button));
    button.addEventListener("pointerleave", (event) => { if (event.relatedTarget !== tip && document.activeElement !== button) hide(); });
    button.addEventListener("focus", () => show(button));
    button.addEventListener("blur", hide);
    button.addEventListener("click", () => show(button));
  }
  tip.addEventListener("pointerleave", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", () => { if (!document.activeElement.matches("button.why")) hide(); else show(document.activeElement); }, { passive: true, capture: true });
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  let done = true;
  try { await navigator.clipboard.writeText(code.textContent); } catch {
    getSelection().selectAllChildren(code);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Selected: copy it by hand";
  say(done ? "Copied" : "The command is selected");
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

start();
