document.querySelectorAll(".curves").forEach(function (box) {
  "use strict";
  const figures = JSON.parse(document.getElementById(box.dataset.record).textContent).figures;
  const styles = JSON.parse(box.dataset.styles);
  const svg = box.querySelector("svg.chart"), note = box.querySelector(".note");
  const attack = box.querySelector(".attack"), cost = box.querySelector(".cost");
  const models = Array.from(box.querySelectorAll("input"));
  const left = 58, right = 470, top = 10, bottom = 206;
  function add(name, values, text) {
    const part = document.createElementNS(svg.namespaceURI, name);
    Object.keys(values).forEach(function (key) { part.setAttribute(key, values[key]); });
    if (text !== undefined) { part.textContent = text; }
    svg.appendChild(part);
    return part;
  }
  function power(exponent) {
    if (exponent >= 0 && exponent < 4) { return String(Math.pow(10, exponent)); }
    return "10" + String(exponent).replace(/./g, function (c) { return "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"["0123456789-".indexOf(c)]; });
  }
  function draw() {
    while (svg.firstChild) { svg.removeChild(svg.firstChild); }
    const rows = figures.attacks[attack.value] || {}, said = [];
    const shown = models.filter(function (m) { return m.checked; }).map(function (m) { return m.value; });
    const done = shown.filter(function (name) { return rows[name] && rows[name].status === "done"; });
    shown.forEach(function (name) {
      if (rows[name] && rows[name].status !== "done") { said.push(name + ": " + rows[name].status + " (" + rows[name].reason + ")"); }
    });
    note.textContent = said.join("; ");
    const points = [].concat.apply([], done.map(function (name) { return rows[name].curve; }));
    const costs = points.map(function (p) { return Math.max(p[cost.value], 1); }), scores = points.map(function (p) { return p.mean; });
    const low = costs.length ? Math.log10(Math.min.apply(null, costs)) : 0;
    const high = Math.max(costs.length ? Math.log10(Math.max.apply(null, costs)) : 1, low + 0.04);
    const floor = Math.max(Math.min.apply(null, scores.concat(0, figures.chance)), -0.5);
    const roof = Math.max(Math.max.apply(null, scores.concat(0.1, figures.chance)) * 1.02, floor + 0.1);
    function x(value) { return left + (right - left) * (Math.log10(Math.max(value, 1)) - low) / (high - low); }
    function y(value) { return bottom - (bottom - top) * (Math.max(value, floor) - floor) / (roof - floor); }
    const first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9), stride = Math.max(1, Math.ceil((high - low) / 5));
    const ticks = last > first ? [] : [low, high];
    for (let at = first; last > first && at <= last; at += stride) { ticks.push(at); }
    ticks.forEach(function (at) {
      const place = x(Math.pow(10, at)), said = Number.isInteger(at) ? power(at) : Math.pow(10, at).toPrecision(2).replace("e+", "e");
      add("path", { "class": "grid", d: "M" + place + " " + top + "V" + bottom });
      add("text", { x: place, y: bottom + 16, "text-anchor": place > right - 12 ? "end" : "middle" }, said);
    });
    const step = [0.05, 0.1, 0.2, 0.25, 0.5].find(function (s) { return roof - floor <= 6 * s; }) || 1;
    for (let at = Math.ceil(floor / step - 1e-9); at * step <= roof; at += 1) {
      add("path", { "class": "grid", d: "M" + left + " " + y(at * step) + "H" + right });
      add("text", { x: left - 6, y: y(at * step) + 4, "text-anchor": "end" }, Math.round(100 * at * step) + "%");
    }
    add("text", { x: (left + right) / 2, y: bottom + 35, "text-anchor": "middle" }, attack.value + ": " + (cost.value === "steps" ? "steps" : "operations") + " the attacker spends");
    add("path", { "class": "level", d: "M" + left + " " + y(figures.chance) + "H" + right });
    done.forEach(function (name) {
      const curve = rows[name].curve.map(function (p) { return [x(p[cost.value]), y(p.mean), p]; });
      add("path", { "class": "line " + styles[name], d: "M" + curve.map(function (p) { return p[0] + " " + p[1]; }).join("L") });
      curve.forEach(function (p) {
        const mark = add("use", { href: "#m" + styles[name].slice(1), x: p[0], y: p[1], "class": styles[name] });
        mark.appendChild(document.createElementNS(svg.namespaceURI, "title")).textContent = name + ": " + (100 * p[2].mean).toFixed(1) + "%";
      });
    });
    const best = done.map(function (name) { return name + " " + (100 * rows[name].score.mean).toFixed(1) + "%"; });
    svg.setAttribute("aria-label", "Test score by cost of " + attack.value + ". It reaches: " + (best.join(", ") || "nothing to show"));
  }
  [attack, cost].concat(models).forEach(function (control) { control.addEventListener("change", draw); });
  draw();
});
