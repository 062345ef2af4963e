// Three things that Markdown cannot say. Without this script, as on a repository's web page, nothing is missing.

// On a narrow screen the theme's buttons are labels, which the keyboard does not reach.
(() => {
  "use strict";

  const NAMES = { __drawer: "Navigation", __search: "Search", __toc: "On this page" };

  for (const label of document.querySelectorAll("label.md-header__button, label.md-sidebar-button, label.md-nav__link[for]")) {
    label.tabIndex = 0;
    label.setAttribute("role", "button");
    const name = label.title || NAMES[label.htmlFor];
    if (name) label.setAttribute("aria-label", name);
    label.addEventListener("keydown", (event) => {
      if (event.key !== " ") return; // the theme itself takes Enter
      event.preventDefault();
      label.click();
    });
  }
})();

// A table that is wider than the screen scrolls, by the keyboard, too.
(() => {
  "use strict";

  function reachable() {
    for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
      if (table.scrollWidth <= table.clientWidth || table.tabIndex === 0) continue;
      table.tabIndex = 0;
      table.setAttribute("role", "group");
      table.setAttribute("aria-label", "Table that scrolls sideways");
    }
  }

  addEventListener("load", reachable);
  addEventListener("resize", reachable);
})();

// The animation of docs/why.md takes the place of the picture equalising.png and reads equalising.json, which is next to it.
(() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";
  const WIDE = 360, HIGH = 230, LEFT = 42, RIGHT = 8, TOP = 12, BOTTOM = 42;
  const PAUSE = 420; // milliseconds between the steps of a running animation

  function drawn(name, attributes = {}, text = "") {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return element;
  }

  function made(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
  const height = (value) => HIGH - BOTTOM - value * (HIGH - TOP - BOTTOM);

  function panel(label, ticks) {
    const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label });
    for (const [value, text] of ticks) {
      svg.append(drawn("line", { x1: LEFT, x2: WIDE - RIGHT, y1: height(value), y2: height(value), class: "eq-grid" }));
      svg.append(drawn("text", { x: LEFT - 6, y: height(value) + 4, "text-anchor": "end" }, text));
    }
    return svg;
  }

  function below(svg, x, y, text) {
    svg.append(drawn("text", { x, y, "text-anchor": "middle" }, text));
  }

  // Bars: grey is the gradient, its strongest direction one; red is what EGD makes of it.
  function bars(count) {
    const svg = panel("Singular values of the gradient, before and after EGD", [[0, "0"], [0.5, "½"], [1, "1"]]);
    const slot = (WIDE - LEFT - RIGHT) / count;
    const kinds = ["eq-after", "eq-before"].map((kind) => Array.from({ length: count }, (_, place) => {
      const bar = drawn("rect", { x: LEFT + (place + 0.1) * slot, y: height(1), width: 0.8 * slot, class: kind,
        height: height(0) - height(1) });
      svg.append(bar);
      return bar;
    }));
    below(svg, (LEFT + WIDE - RIGHT) / 2, HIGH - 6, "directions of the gradient, strongest first");
    return { svg, show(before, after, equalised) {
      svg.classList.toggle("eq-on", equalised);
      before.forEach((value, place) => {
        const relative = value / before[0];
        kinds[0][place].style.transform = `scaleY(${equalised ? after[place] : relative})`;
        kinds[1][place].style.transform = `scaleY(${relative})`;
      });
    } };
  }

  // Accuracies of both networks, up to an epoch. The axis is linear up to 1, then logarithmic.
  function curves(recording) {
    const svg = panel("Training and test accuracy, with EGD and without", [[0, "0"], [0.5, "50 %"], [1, "100 %"]]);
    const scale = (epoch) => (epoch < 1 ? 0.3 * epoch : 0.3 + Math.log10(epoch));
    const last = recording.egd.length - 1;
    const along = (epoch) => LEFT + (scale(epoch) / scale(last)) * (WIDE - LEFT - RIGHT);
    for (const epoch of [0, 1, 10, 100]) {
      svg.append(drawn("line", { x1: along(epoch), x2: along(epoch), y1: height(0), y2: height(0) + 4, class: "eq-tick" }));
      below(svg, along(epoch), HIGH - 25, String(epoch));
    }
    below(svg, (LEFT + WIDE - RIGHT) / 2, HIGH - 6, "epoch, counted from 0 (logarithmic)");
    const lines = [];
    for (const name of ["plain", "egd"]) for (const place of [0, 1]) {
      const kind = `eq-line eq-${name} ${place ? "eq-test" : "eq-training"}`, values = recording[name].map((each) => each[place]);
      const points = values.map((value, at) => `${along(at).toFixed(1)},${height(value).toFixed(1)}`);
      const line = drawn("polyline", { class: kind }), dot = drawn("circle", { r: place ? 4 : 2.5, class: `eq-dot eq-${name}` });
      svg.append(drawn("polyline", { class: `${kind} eq-whole`, points: points.join(" ") }), line, dot);
      lines.push({ line, dot, values, points });
    }
    return { svg, show(epoch) {
      for (const { line, dot, values, points } of lines) {
        line.setAttribute("points", points.slice(0, epoch + 1).join(" "));
        dot.setAttribute("cx", along(epoch));
        dot.setAttribute("cy", height(values[epoch]));
      }
    } };
  }

  function key() {
    const item = (kind, text) => made("span", { class: "eq-item" }, made("span", { class: `eq-swatch ${kind}` }), text);
    return made("p", { class: "eq-key" }, item("eq-before", "gradient"), item("eq-after", "after EGD"),
      item("eq-test eq-egd", "test, with EGD"), item("eq-training eq-egd", "training, with EGD"),
      item("eq-test eq-plain", "test, SGD alone"), item("eq-training eq-plain", "training, SGD alone"));
  }

  function described(recording, frame, equalised) {
    const kept = frame.before.filter((_, place) => frame.after[place] > 0.5);
    const ratio = (frame.before[0] / kept[kept.length - 1]).toPrecision(2);
    const first = equalised
      ? "EGD makes all directions equally strong."
      : `The gradient's strongest direction is ${Number(ratio)} times the weakest.`;
    const [training, test] = recording.egd[frame.epoch], [plain, plainTest] = recording.plain[frame.epoch];
    return `Epoch ${frame.epoch}. ${first} With EGD: training ${percent(training)}, test ${percent(test)}. ` +
      `SGD alone: training ${percent(plain)}, test ${percent(plainTest)}.`;
  }

  function animation(recording, source) {
    const { frames, made: how, settings } = recording;
    const left = bars(frames[0].before.length), right = curves(recording);
    const status = made("p", { class: "eq-status", "aria-live": "polite" });
    const button = (text, act) => {
      const each = made("button", { type: "button", class: "md-button" }, text);
      each.addEventListener("click", act);
      return each;
    };
    const slider = made("input", { type: "range", min: 0, max: 2 * frames.length - 1, value: 0, step: 1,
      "aria-label": "Step of the animation" });
    let at = 0, timer = null;

    function show(step) {
      at = Math.max(0, Math.min(2 * frames.length - 1, step));
      const frame = frames[at >> 1], equalised = at % 2 === 1;
      left.show(frame.before, frame.after, equalised);
      right.show(frame.epoch);
      status.textContent = described(recording, frame, equalised);
      slider.value = at;
      slider.setAttribute("aria-valuetext", `epoch ${frame.epoch}, ${equalised ? "after" : "before"} EGD`);
      if (at === 2 * frames.length - 1) pause();
    }
    function pause() {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
      status.setAttribute("aria-live", "polite");
    }
    function run() {
      if (at === 2 * frames.length - 1) show(0);
      timer = setInterval(() => show(at + 1), PAUSE);
      play.textContent = "Pause";
      status.setAttribute("aria-live", "off"); // a screen reader would read every step
    }
    const go = (step) => { pause(); show(step); };
    const play = button("Play", () => (timer === null ? run() : pause()));
    const controls = made("div", { class: "eq-controls" }, play, button("Back", () => go(at - 1)),
      button("Step", () => go(at + 1)), button("Reset", () => go(0)), slider);
    slider.addEventListener("input", () => go(Number(slider.value)));

    const note = `Recorded by ${how.script} on ${how.date}: experiment ${settings.experiment}, seed ${settings.seed}, ` +
      `methods ${settings.methods.egd} and ${settings.methods.plain}; torch ${how.torch}. Every ${settings.every}th of ` +
      `${settings.directions} directions is shown. Keys: left and right step, Home resets.`;
    const figure = made("figure", { class: "eq", role: "group", "aria-label": "A gradient is equalised while a network groks" },
      made("div", { class: "eq-plots" }, left.svg, right.svg), key(), status, controls,
      made("figcaption", {}, note, " ", made("a", { href: source }, "The recording"), "."));
    figure.addEventListener("keydown", (event) => {
      if (event.target === slider || event.altKey || event.ctrlKey || event.metaKey) return; // a slider has these keys itself
      const step = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      go(step);
    });
    show(0);
    return figure;
  }

  async function begin() {
    const picture = document.querySelector('img[src$="equalising.png"]');
    if (picture === null) return;
    const source = picture.src.replace(/png$/, "json");
    const answer = await fetch(source);
    if (answer.ok) picture.closest("p").replaceWith(animation(await answer.json(), source));
  }

  begin();
})();
