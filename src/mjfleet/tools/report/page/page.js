"use strict";
// Draws the curves. All charts share their horizontal axis: a pointer over one shows the values of
// all there, and zooming into one zooms into all.
const entries = JSON.parse(document.getElementById("curves-data").textContent);
const along = document.getElementById("along");
const logarithmic = document.getElementById("logarithmic");
const HEIGHT = 180;
const COLOURS = 8;
let charts = [];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function short(value) {
  if (value == null) return "-";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  return size && size < 1e-3 ? value.toExponential(2) : `${+value.toPrecision(4)}`;
}

// Each entry's colour is the same in all charts; from the ninth on, lines are dashed.
const colourOf = (number) => colour(`--line-${number % COLOURS}`);

function draw(place) {
  const column = place.dataset.column;
  const shown = place.parentNode.querySelector("figcaption span");
  const before = [...shown.childNodes];
  const tables = [], series = [{}], bands = [], drawn = [];
  entries.forEach((entry, number) => {
    if (!entry[column]) return;
    const x = entry[along.value][0];
    const lines = entry[column];  // Values; or the mean, low and high of its interval.
    const dash = number < COLOURS ? [] : [6, 4];
    drawn.push({ number, at: series.length, last: x.at(-1) });
    series.push({ stroke: () => colourOf(number), width: 1.75, spanGaps: true, dash });
    if (lines.length > 1) {
      bands.push({ series: [series.length + 1, series.length], fill: () => `${colourOf(number)}30` });
      series.push({ spanGaps: true, points: { show: false } }, { spanGaps: true, points: { show: false } });
    }
    tables.push([x, ...lines]);
  });
  const values = tables.length > 1 ? uPlot.join(tables) : tables[0];
  const isAbove0 = values.slice(1).every((line) => line.every((value) => value == null || value > 0));
  const axis = {
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
    values: (_, splits) => splits.map((split) => (split == null ? "" : short(split))),
  };

  function show(at) {
    const x = values[0][at];
    const parts = drawn.filter(({ last }) => x <= last).map(({ number, at: line }) => {
      const part = document.createElement("b");
      const known = values[line].slice(0, at + 1).findLast((value) => value != null);
      part.style.color = entries.length > 1 ? colourOf(number) : "";
      part.textContent = `${short(known)} `;
      return part;
    });
    shown.replaceChildren(...parts, `at ${short(x)}`);
  }

  const options = {
    width: place.clientWidth,
    height: HEIGHT,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, sync: { key: "all", scales: ["x", null] }, points: { size: 7 } },
    scales: { x: { time: false }, y: { distr: logarithmic.checked && isAbove0 ? 3 : 1 } },
    axes: [{ ...axis, size: 22 }, { ...axis, size: 52 }],
    series,
    bands,
    hooks: {
      setCursor: [({ cursor: { idx } }) => (idx == null ? shown.replaceChildren(...before) : show(idx))],
    },
  };
  return new uPlot(options, values, place);
}

function drawAll() {
  charts.forEach((chart) => chart.destroy());
  charts = [...document.querySelectorAll(".chart[data-column]")].map(draw);
}

function fit() {
  charts.forEach((chart) => {
    const width = chart.root.parentNode.clientWidth;
    if (width !== chart.width) chart.setSize({ width, height: HEIGHT });
  });
}

if (along) {
  drawAll();
  along.onchange = drawAll;
  logarithmic.onchange = drawAll;
  new ResizeObserver(fit).observe(document.body);
  for (const query of ["print", "(prefers-color-scheme: dark)"]) {
    matchMedia(query).onchange = () => {
      fit();
      charts.forEach((chart) => chart.redraw());
    };
  }
}
