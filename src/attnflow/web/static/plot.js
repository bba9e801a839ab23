// From our traces to calls of plotly. Names from data are text: plotly would read tags in them.
/* global Plotly */
import { make } from "/static/dom.js";

const text = (words) =>
  String(words).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const dark = matchMedia("(prefers-color-scheme: dark)");
// Those of the figures, safe for colour-blind eyes.
const COLORS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999"];

export function onTheme(redraw) {
  dark.addEventListener("change", redraw);
}

function colorOf(index) {
  const name = COLORS[index % COLORS.length];
  return name === "#000000" && dark.matches ? "#ffffff" : name;
}

function ink() {
  return dark.matches
    ? { font: "#dddddd", grid: "#3a3a3a", band: 0.16 }
    : { font: "#222222", grid: "#e2e2e2", band: 0.1 };
}

const shapes = {
  line: (t) => ({
    type: "scatter", mode: "lines", x: t.x, y: t.y,
    line: { color: colorOf(t.color), dash: t.dash || "solid", width: 2 },
  }),
  points: (t) => ({
    type: "scatter", mode: "markers", x: t.x, y: t.y,
    marker: {
      color: colorOf(t.color), symbol: t.symbol, size: 10,
      line: { color: colorOf(t.color), width: t.symbol === "line-ew" ? 2 : 0 },
    },
  }),
  bar: (t) => ({ type: "bar", x: t.x, y: t.y, marker: { color: colorOf(t.color) } }),
  contour: (t) => ({
    type: "contour", x: t.x, y: t.y, z: t.z, colorscale: "Viridis", opacity: 0.75, ncontours: 18,
    colorbar: { thickness: 10, outlinewidth: 0 }, line: { width: 0.5 }, showlegend: false,
  }),
  heat: (t, moment) => ({
    type: "heatmap", z: Array.isArray(t.z[0][0]) ? t.z[moment ?? t.z.length - 1] : t.z,
    colorscale: "RdBu", reversescale: true, zmin: -t.limit, zmax: t.limit, xgap: 1, ygap: 1,
    colorbar: { thickness: 10, outlinewidth: 0 },
  }),
};

function axis(about, ticks = {}) {
  const { font, grid } = ink();
  const given = {
    title: { text: text(about.title), standoff: 6, font: { size: 12 } },
    type: about.log ? "log" : "-", automargin: true, color: font, gridcolor: grid,
    zerolinecolor: grid, exponentformat: "power", ...ticks,
  };
  if (about.low !== null && about.high !== null) given.range = [about.low, about.high];
  else if (about.low === 0) given.rangemode = "tozero";
  return given;
}

// Whole powers of ten where there are enough of them, and not too many.
function decades(plot, along) {
  if (!plot[along].log) return {};
  const values = plot.traces.flatMap((t) => (Array.isArray(t[along]) ? t[along] : []))
    .filter((x) => x > 0).map(Math.log10);
  const span = Math.max(...values) - Math.min(...values);
  return span > 1.2 ? { dtick: Math.ceil(span / 7) } : { nticks: 5 };
}

function bandsOf(plot) {
  const place = (x) => (plot.x.log ? Math.log10(x) : x);
  const shaded = plot.traces.filter((t) => t.kind === "band");
  return {
    shapes: [
      ...shaded.map((t) => ({
        type: "rect", yref: "paper", y0: 0, y1: 1, x0: t.x[0], x1: t.x[1],
        fillcolor: colorOf(t.color), opacity: ink().band, line: { width: 0 }, layer: "below",
      })),
      ...plot.traces.filter((t) => t.kind === "level").map((t) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: t.y, y1: t.y,
        line: { color: colorOf(t.color), dash: "dash", width: 2 },
        showlegend: true, name: text(t.name),
      })),
    ],
    annotations: shaded.map((t) => ({
      x: (place(t.x[0]) + place(t.x[1])) / 2, y: 1, yref: "paper", yanchor: "top",
      text: text(t.name), showarrow: false, font: { size: 11, color: ink().font },
    })),
  };
}

function layout(plot, small) {
  const map = plot.traces.some((t) => t.kind === "heat");
  const whole = map ? { dtick: 1, showgrid: false } : {};
  return {
    margin: { l: small ? 40 : 56, r: small ? 4 : 12, t: map ? 6 : 34, b: 44 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink().font, size: 12 },
    xaxis: axis(plot.x, { ...whole, ...decades(plot, "x") }),
    yaxis: axis(plot.y, map ? { ...whole, autorange: "reversed" } : decades(plot, "y")),
    showlegend: !map && plot.traces.filter((t) => t.name && t.kind !== "band").length > 1,
    legend: { orientation: "h", x: 0, y: 1.0, yanchor: "bottom", font: { size: 11 } },
    hovermode: "closest", dragmode: false, ...bandsOf(plot),
  };
}

// A figure that can be drawn again: draw(plot, moment).
export function figure(onPick) {
  const heading = make("h3");
  const canvas = make("div", { class: "canvas", role: "img" });
  const element = make("section", { class: "plot" }, heading, canvas);
  let listening = false;

  async function draw(plot, moment) {
    heading.textContent = plot.title;
    canvas.setAttribute("aria-label", plot.title);
    element.classList.toggle("wide", plot.wide);
    const traces = plot.traces.filter((t) => t.kind in shapes).map((t) => ({
      ...shapes[t.kind](t, moment), name: text(t.name), meta: t.mark,
      ...(t.show === false ? { showlegend: false } : {}),
    }));
    canvas.style.visibility = traces.length ? "visible" : "hidden";
    const small = canvas.clientWidth < 300;
    for (const trace of traces) if (trace.type === "heatmap") trace.showscale = !small;
    const config = { displayModeBar: false, responsive: true };
    await Plotly.react(canvas, traces, layout(plot, small), config);
    if (!listening && plot.pick) {
      listening = true;
      canvas.on("plotly_click", (event) => {
        const mark = event.points[0]?.data.meta;
        if (mark !== undefined) onPick(plot.pick, mark);
      });
    }
  }

  return { element, draw, remove: () => (Plotly.purge(canvas), element.remove()) };
}
