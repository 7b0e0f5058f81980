"use strict";
// Draws the curves. All charts share their horizontal axis: a pointer over one shows the values of
// all there, and zooming into one zooms into all.
const data = JSON.parse(document.getElementById("curves-data").textContent);
const along = document.getElementById("along");
const logarithmic = document.getElementById("logarithmic");
const HEIGHT = 180;
let charts = [];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function short(value) {
  if (value == null) return "-";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  return size && size < 1e-3 ? value.toExponential(2) : `${+value.toPrecision(4)}`;
}

function draw(place) {
  const values = data.columns[place.dataset.column];
  const band = data.bands[place.dataset.column] || [];  // Its low and high.
  const shown = place.parentNode.querySelector("figcaption span");
  const last = shown.textContent;
  const isAbove0 = [values, ...band].flat().every((value) => value === null || value > 0);
  const axis = {
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
    values: (_, splits) => splits.map((split) => (split == null ? "" : short(split))),
  };
  const options = {
    width: place.clientWidth,
    height: HEIGHT,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, sync: { key: "all", scales: ["x", null] }, points: { size: 7 } },
    scales: { x: { time: false }, y: { distr: logarithmic.checked && isAbove0 ? 3 : 1 } },
    axes: [{ ...axis, size: 22 }, { ...axis, size: 52 }],
    series: [
      {},
      { stroke: () => colour("--accent"), width: 1.75, spanGaps: !band.length },
      ...band.map(() => ({ stroke: "transparent", width: 0, points: { show: false } })),
    ],
    bands: band.length ? [{ series: [3, 2], fill: () => `${colour("--accent")}33` }] : [],
    hooks: {
      setCursor: [({ cursor: { idx } }) => {
        const x = data.along[along.value][idx];
        shown.textContent = idx == null ? last : `${short(values[idx])} at ${short(x)}`;
      }],
    },
  };
  return new uPlot(options, [data.along[along.value], values, ...band], place);
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
