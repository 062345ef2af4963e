// Draws one panel of an interactive figure as SVG. Numbers come from the page's data; nothing here computes a statistic.
const SVG = "http://www.w3.org/2000/svg";
const NARROW = 560;

function make(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const digits = (value) => (Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-4) ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(4))));
const percent = (value) => `${Number((100 * value).toFixed(1))} %`;

// A scale from values to pixels. `kind`: linear, log, or log1 for epochs, which begin at 0.
function scale(kind, low, high, from, to) {
  const warp = { linear: (v) => v, log: (v) => Math.log10(v), log1: (v) => Math.log10(v + 1) }[kind];
  const back = { linear: (v) => v, log: (v) => 10 ** v, log1: (v) => 10 ** v - 1 }[kind];
  let [a, b] = [warp(low), warp(high)];
  if (!(b > a)) [a, b] = [a - 0.5, a + 0.5];
  const pixel = (v) => from + ((warp(v) - a) / (b - a)) * (to - from);
  const value = (p) => back(a + ((p - from) / (to - from)) * (b - a));
  const ends = [back(a), back(b)];
  return { pixel, value, low: ends[0], high: ends[1], ticks: kind === "linear" ? even(ends) : powers(ends, kind, b - a) };
}

function even([low, high], about = 5) {
  const rough = (high - low) / about;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].find((each) => each * unit >= rough) || 10);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + 1e-9 * step; tick += 1) ticks.push(tick * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
}

function powers([low, high], kind, decades) {
  if (decades < 0.7) return even([low, high]).filter((tick) => kind === "log1" || tick > 0);
  const leads = decades < 2.2 ? [1, 2, 5] : [1];
  const skip = Math.max(1, Math.ceil(decades / 7));
  const ticks = kind === "log1" && low <= 0 ? [0] : [];
  for (let power = Math.floor(Math.log10(Math.max(low, 1e-300))); power <= Math.log10(high); power += 1)
    for (const lead of power % skip ? [] : leads) ticks.push(lead * 10 ** power);
  return ticks.filter((tick) => tick >= low - 1e-9 && tick <= high * (1 + 1e-9) && (kind !== "log1" || tick === 0 || tick >= 1));
}

// The axes, lines, bands, marks and rows of one panel, in the state that the reader has chosen.
class PanelView {
  constructor(panel, chart, box, width) {
    Object.assign(this, { panel, chart, box, state: chart.state, width, points: [] });
    this.isRows = panel.kind === "rows";
    this.rows = panel.rows.filter((row) => row.m < 0 || this.state.methods.has(row.m));
    this.narrow = width < NARROW;
    const rowHeight = this.narrow ? 38 : 24;
    this.height = this.isRows ? rowHeight * this.rows.length + 46 : panel.kind === "plane" ? Math.min(360, Math.max(240, width * 0.6)) : 230;
    const labels = Math.min(width * 0.36, 16 + 6.6 * Math.max(8, ...this.rows.map((row) => row.t.length)));
    const texts = this.narrow ? 14 : 20 + 6.2 * Math.max(0, ...this.rows.map((row) => row.text.length));
    const levels = panel.levels.length && !this.narrow ? 92 : 14;
    this.area = this.isRows
      ? { left: this.narrow ? 12 : labels, right: width - Math.min(texts, width * 0.3), top: 6, bottom: this.height - 40 }
      : { left: 58, right: width - levels, top: 8, bottom: this.height - 40 };
    this.rowHeight = rowHeight;
    this.collect();
    this.extent = this.extents();
  }

  time(x, method) {
    const { panel, state } = this;
    if (panel.kind === "plane" || panel.xLabel) return x;
    if (state.unit === "step") return (x + 1) * (panel.steps || 1);
    if (state.unit !== "seconds") return x;
    return panel.ms[method] == null ? null : ((x + 1) * panel.ms[method]) / 1000;
  }

  shown(line) {
    if (!this.state.methods.has(line.m)) return false;
    if (line.s !== undefined) return this.state.seeds.has(line.s);
    return this.state.median;
  }

  collect() {
    this.lines = this.panel.lines.filter((line) => this.shown(line)).map((line) => {
      const list = (place) => DATA.arrays[place];
      const x = list(line.x).map((value) => (value === null ? null : this.time(value, line.m)));
      const bands = this.state.bands ? (line.b || []).map(([low, high, opacity]) => ({ low: list(low), high: list(high), opacity })) : [];
      return { ...line, x, y: list(line.y), raw: list(line.e === undefined ? line.x : line.e), bands };
    }).filter((line) => line.x.some((value) => value !== null));
  }

  // The range of what is shown, before zoom: [x0, x1, y0, y1].
  extents() {
    const { panel, state, chart } = this;
    const logX = chart.spec.logX !== null && state.logX && panel.kind !== "plane";
    const kindX = !logX ? "linear" : panel.kind === "rows" && panel.xLabel ? "log1" : state.unit === "epoch" ? "log1" : "log";
    const logY = panel.y.log !== null && (state.logY === null ? panel.y.log : state.logY);
    const xs = [], ys = [];
    for (const line of this.lines) {
      line.x.forEach((x, place) => { if (x !== null && (kindX !== "log" || x > 0)) { xs.push(x); } });
      for (const list of [line.y, ...line.bands.flatMap((band) => [band.low, band.high])])
        for (const y of list) if (y !== null && (!logY || y > 0)) ys.push(y);
    }
    for (const row of this.rows)
      for (const [method, x] of row.p) if (x !== null && state.methods.has(method)) { const at = this.time(x, method); if (at !== null) xs.push(at); }
    if (!panel.y.percent) for (const [level] of panel.levels) if (ys.length) ys.push(level);
    this.kindX = kindX; this.logY = logY;
    const least = (list, other) => list.reduce((a, b) => Math.min(a, b), Infinity) === Infinity ? other : list.reduce((a, b) => Math.min(a, b));
    const most = (list, other) => list.reduce((a, b) => Math.max(a, b), -Infinity) === -Infinity ? other : list.reduce((a, b) => Math.max(a, b));
    let [x0, x1, y0, y1] = [least(xs, kindX === "log" ? 1 : 0), most(xs, 1), least(ys, logY ? 0.1 : 0), most(ys, 1)];
    if (this.isRows) { if (kindX === "linear") { const room = 0.06 * (x1 - x0 || 1); x0 -= room; x1 += room; } else { x0 = kindX === "log" ? x0 / 1.25 : Math.max(0, x0 / 1.25 - 0.2); x1 *= 1.25; } }
    else if (panel.kind === "time") { x0 = kindX === "linear" ? Math.min(x0, 0) : x0; x1 *= kindX === "linear" ? 1.02 : 1.1; }
    if (logY) { y0 /= 1.2; y1 *= 1.2; } else {
      if (panel.y.low !== null) y0 = Math.min(panel.y.low, y0);
      if (panel.y.high !== null) y1 = Math.max(panel.y.high, y1);
      const room = 0.05 * (y1 - y0 || 1);
      y1 += room; if (panel.y.low === null || panel.y.percent) y0 -= room;
    }
    return panel.kind === "plane" ? this.square(x0, x1, y0, y1) : [x0, x1, y0, y1];
  }

  scales() {
    const { panel, area, chart } = this;
    let [x0, x1, y0, y1] = this.extent;
    const zoom = chart.zoomOf(panel);
    if (zoom.x) [x0, x1] = zoom.x;
    if (zoom.y) [y0, y1] = zoom.y;
    const failed = this.isRows && this.rows.some((row) => row.p.some(([, x]) => x === null)) ? 78 : 0;
    this.failedAt = failed ? area.right - 34 : null;
    this.x = scale(this.kindX, x0, x1, area.left, area.right - failed);
    this.y = scale(this.logY ? "log" : "linear", y0, y1, area.bottom, area.top);
  }

  square(x0, x1, y0, y1) {
    const { area } = this;
    const unit = 1.15 * Math.max((x1 - x0) / (area.right - area.left), (y1 - y0) / (area.bottom - area.top), 1e-12);
    const [dx, dy] = [(unit * (area.right - area.left)) / 2, (unit * (area.bottom - area.top)) / 2];
    return [(x0 + x1) / 2 - dx, (x0 + x1) / 2 + dx, (y0 + y1) / 2 - dy, (y0 + y1) / 2 + dy];
  }

  draw() {
    this.scales();
    const { area, width, height } = this;
    const clip = `clip-${(PanelView.count = (PanelView.count || 0) + 1)}`;
    this.svg = make("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const frame = make("svg:rect", { x: area.left, y: area.top, width: Math.max(0, area.right - area.left), height: Math.max(0, area.bottom - area.top) });
    this.svg.append(make("svg:defs", {}, make("svg:clipPath", { id: clip }, frame)));
    this.axes();
    this.inside = make("svg:g", { "clip-path": `url(#${clip})` });
    this.svg.append(this.inside);
    if (this.isRows) this.drawRows(); else this.drawLines();
    const empty = this.isRows ? !this.rows.length : !this.lines.length;
    if (empty) this.text((area.left + area.right) / 2, (area.top + area.bottom) / 2, this.emptyText(), "middle");
    this.cursor = make("svg:circle", { r: 6, class: "cursor", visibility: "hidden" });
    this.drag = make("svg:rect", { class: "drag", visibility: "hidden" });
    this.svg.append(this.cursor, this.drag);
    this.box.replaceChildren(this.svg);
  }

  emptyText() {
    if (!this.panel.lines.length && !this.panel.rows.length) return "not run";
    return this.state.unit === "seconds" && !Object.keys(this.panel.ms).length ? "no stored times" : "nothing chosen";
  }

  text(x, y, words, anchor = "start", kind = "") {
    this.svg.append(make("svg:text", { x, y, "text-anchor": anchor, class: kind }, words));
  }

  axes() {
    const { area, panel } = this;
    for (const tick of spread(this.x.ticks, this.x.pixel, 44)) {
      const at = this.x.pixel(tick);
      if (at < area.left - 1 || at > area.right + 1) continue;
      this.svg.append(make("svg:line", { x1: at, x2: at, y1: area.top, y2: area.bottom, class: "grid" }));
      this.text(at, area.bottom + 15, digits(tick), "middle", "tick");
    }
    this.text((area.left + area.right) / 2, this.height - 6, this.xName(), "middle", "tick");
    if (this.isRows) return;
    for (const tick of spread(this.y.ticks, this.y.pixel, 18)) {
      const at = this.y.pixel(tick);
      if (at < area.top - 1 || at > area.bottom + 1) continue;
      this.svg.append(make("svg:line", { x1: area.left, x2: area.right, y1: at, y2: at, class: "grid" }));
      this.text(area.left - 6, at + 4, panel.y.percent ? percent(tick) : digits(tick), "end", "tick");
    }
    for (const [level, name] of panel.levels) {
      const at = this.y.pixel(level);
      if (at < area.top || at > area.bottom) continue;
      this.svg.append(make("svg:line", { x1: area.left, x2: area.right, y1: at, y2: at, class: "level" }));
      if (this.narrow) this.text(area.left + 4, at < area.top + 14 ? at + 12 : at - 4, name, "start", "tick");
      else this.text(area.right + 6, at + 4, name, "start", "tick");
    }
    for (const rule of panel.rules) {
      const at = this.x.pixel(this.time(rule, 0));
      if (at >= area.left && at <= area.right) this.svg.append(make("svg:line", { x1: at, x2: at, y1: area.top, y2: area.bottom, class: "level" }));
    }
  }

  xName() {
    const { panel, state } = this;
    const name = panel.xLabel || (panel.kind === "rows" ? { epoch: panel.y.label, seconds: "seconds to the threshold" }[state.unit] : { epoch: "epoch", step: "step", seconds: "seconds" }[state.unit]);
    return this.kindX === "linear" ? name : `${name} (logarithmic)`;
  }

  ink(method, attributes) {
    const look = this.chart.spec.methods[method];
    return { ...attributes, style: `--c:${look.colour};--d:${look.dark}` };
  }

  drawLines() {
    const order = { seed: 0, rest: 1, training: 2, steps: 3, path: 3, median: 3 };
    const lines = [...this.lines].sort((a, b) => order[a.r] - order[b.r]);
    const dash = { "-": null, "--": "7 4", "-.": "7 3 2 3", ":": "2 3" };
    for (const line of lines) for (const band of line.bands) this.inside.append(make("svg:path", this.ink(line.m, { d: this.ribbon(line, band), class: "band", "fill-opacity": band.opacity })));
    for (const line of lines) {
      const look = this.chart.spec.methods[line.m];
      const style = line.r === "training" ? ":" : look.line;
      this.inside.append(make("svg:path", this.ink(line.m, { d: this.path(line), class: `line ${line.r}`, "stroke-dasharray": dash[style] })));
      this.addPoints(line);
      if (line.r === "path") line.x.forEach((x, place) => {
        const begins = line.raw[place] < 0;
        if (x !== null && line.y[place] !== null) this.inside.append(make("svg:circle", this.ink(line.m, { cx: this.x.pixel(x), cy: this.y.pixel(line.y[place]), r: begins ? 5 : 1.8, class: begins ? "start" : "dot" })));
      });
    }
    for (const [method, x, y, , star] of this.panel.spots) {
      const at = this.time(x, method);
      if (!this.state.methods.has(method) || !this.state.median || at === null || x === null || y === null) continue;
      const [px, py] = [this.x.pixel(at), this.y.pixel(y)];
      const shape = star ? make("svg:path", this.ink(method, { d: starAt(px, py), class: "spot" })) : make("svg:circle", this.ink(method, { cx: px, cy: py, r: 4.5, class: "spot" }));
      this.inside.append(shape);
    }
  }

  addPoints(line) {
    const look = this.chart.spec.methods[line.m];
    const what = { seed: `seed ${line.s}`, training: "training accuracy", rest: "one full-length run", median: "median", steps: "", path: "" }[line.r];
    const points = [];
    line.x.forEach((x, place) => {
      const y = line.y[place];
      if (x === null || y === null || (this.logY && y <= 0)) return;
      const value = this.panel.y.percent ? percent : digits;
      const bands = line.bands.slice(-1).map((band) => `middle half ${value(band.low[place] ?? y)} to ${value(band.high[place] ?? y)}`);
      const epoch = line.r === "path" ? (line.raw[place] < 0 ? "the start" : `epoch ${digits(line.raw[place])}`) : `${this.unitName()} ${digits(x)}`;
      const [px, py] = [this.x.pixel(x), this.y.pixel(y)];
      if (px >= this.area.left - 1 && px <= this.area.right + 1)
        points.push({ px, py, x, text: [look.title, [what, epoch].filter(Boolean).join(", "), line.r === "path" ? "" : value(y), ...bands].filter(Boolean) });
    });
    if (points.length) this.points.push(points);
  }

  unitName() {
    return { epoch: "epoch", step: "step", seconds: "second" }[this.state.unit];
  }

  drawRows() {
    this.rows.forEach((row, index) => {
      const { area } = this;
      const y = area.top + this.rowHeight * (index + 0.5) + (this.narrow ? 8 : 0);
      const label = this.narrow ? `${row.t}${row.text ? `: ${row.text}` : ""}` : clipped(row.t, area.left / 6.6);
      this.text(this.narrow ? area.left : area.left - 8, this.narrow ? y - 12 : y + 4, label, this.narrow ? "start" : "end", "row");
      if (row.span && this.x.low < this.x.high) this.inside.append(make("svg:line", { x1: this.x.pixel(row.span[0]), x2: this.x.pixel(row.span[1]), y1: y, y2: y, class: "span" }));
      const points = [];
      row.p.forEach(([method, x, words], place) => {
        if (!this.state.methods.has(method)) return;
        const at = x === null ? null : this.time(x, method);
        if (x !== null && at === null) return;
        const px = x === null ? this.failedAt : this.x.pixel(at);
        const py = row.m < 0 ? y : y + (x === null ? 15 : 9) * (row.p.length > 1 ? place / (row.p.length - 1) - 0.5 : 0);
        if (x === null) this.svg.append(make("svg:path", this.ink(method, { d: `M${px - 3} ${py - 3}l6 6m0 -6l-6 6`, class: "line cross" })));
        else this.inside.append(make("svg:circle", this.ink(method, { cx: px, cy: py, r: row.m < 0 ? 5.5 : 3.5, class: row.m < 0 ? "spot" : "dot" })));
        const value = x === null ? this.failedName() : this.panel.xLabel ? digits(at) : `${this.unitName()} ${digits(at)}`;
        points.push({ px, py, x: at, text: row.m < 0 ? [row.t, words] : [row.t, words, value] });
      });
      const middle = row.mid === null ? null : this.time(row.mid, row.m);
      if (middle !== null && row.m >= 0) this.inside.append(make("svg:line", this.ink(row.m, { x1: this.x.pixel(middle), x2: this.x.pixel(middle), y1: y - 9, y2: y + 9, class: "line" })));
      const right = Math.max(...points.map((point) => point.px), area.left);
      if (!this.narrow && this.state.unit !== "seconds") this.text(right + 9, y + 4, row.text, "start", "tick");
      points.sort((a, b) => a.px - b.px);
      if (points.length) this.points.push(points);
    });
    if (this.failedAt !== null) this.text(this.failedAt, this.area.bottom + 15, this.failedName(), "middle", "tick");
  }

  failedName() {
    return this.panel.xLabel ? "not to the end" : "not passed";
  }

  path(line) {
    let open = false, d = "", last = 0;
    line.x.forEach((x, place) => {
      const y = line.y[place];
      if (x === null || y === null || (this.logY && y <= 0) || (this.kindX === "log" && x <= 0)) { open = false; return; }
      const [px, py] = [this.x.pixel(x).toFixed(1), this.y.pixel(y).toFixed(1)];
      d += open ? (line.r === "steps" ? `H${px}V${py}` : `L${px} ${py}`) : `M${px} ${py}`;
      open = true;
    });
    return d;
  }

  ribbon(line, band) {
    let d = "", edge = [];
    const close = () => { if (edge.length > 1) d += `M${edge.map(([x, , high]) => `${x} ${high}`).join("L")}L${edge.reverse().map(([x, low]) => `${x} ${low}`).join("L")}Z`; edge = []; };
    line.x.forEach((x, place) => {
      const [low, high] = [band.low[place], band.high[place]];
      if (x === null || low === null || high === null || (this.logY && low <= 0) || (this.kindX === "log" && x <= 0)) { close(); return; }
      edge.push([this.x.pixel(x).toFixed(1), this.y.pixel(low).toFixed(1), this.y.pixel(high).toFixed(1)]);
    });
    close();
    return d;
  }

  nearest(px, py) {
    let best = null, least = Infinity;
    this.points.forEach((points, line) => points.forEach((point, place) => {
      const distance = (point.px - px) ** 2 + (point.py - py) ** 2;
      if (distance < least) [least, best] = [distance, { line, place }];
    }));
    return best && least < 3600 ? best : null;
  }
}

const starAt = (x, y) => `M${[...Array(10).keys()].map((k) => { const [r, a] = [k % 2 ? 3.4 : 8.5, (k * Math.PI) / 5]; return `${(x + r * Math.sin(a)).toFixed(1)} ${(y - r * Math.cos(a)).toFixed(1)}`; }).join("L")}Z`;
const clipped = (text, letters) => (text.length > letters ? `${text.slice(0, Math.max(4, letters - 1))}…` : text);

// Those of the ticks that are at least so many pixels apart.
function spread(ticks, pixel, apart) {
  const kept = [];
  for (const tick of ticks) if (!kept.length || Math.abs(pixel(tick) - pixel(kept[kept.length - 1])) >= apart) kept.push(tick);
  return kept;
}
