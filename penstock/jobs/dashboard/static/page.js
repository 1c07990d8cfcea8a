"use strict";

const COLOURS = ["#2980b9", "#d98032", "#23855b", "#8e5bb5", "#c0392b", "#7f8c8d", "#b7950b", "#16a0a0"];
const MAX_ENTRIES = 20000;
const at = id => document.getElementById(id);
const known = { session: "", last: 0, series: new Map(), streams: new Map(), graph: null, answered: 0 };
const charts = [];

/* ------------------------------------------------------------------------------------------- text */

function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

const number = value => value === null || value === undefined ? "-"
  : Math.abs(value) >= 1e6 ? (value / 1e6).toFixed(1) + " M"
  : Math.abs(value) >= 1e4 ? (value / 1e3).toFixed(1) + " k"
  : String(Math.abs(value) >= 100 ? Math.round(value) : Math.round(value * 10) / 10);
const time = ms => ms === null || ms === undefined ? "-"
  : ms >= 864e5 ? Math.round(ms / 864e5) + " days" : ms >= 36e5 ? (ms / 36e5).toFixed(1) + " h"
  : ms >= 60000 ? (ms / 60000).toFixed(1) + " min" : ms >= 1000 ? (ms / 1000).toFixed(1) + " s" : Math.round(ms) + " ms";
const bytes = value => value === null || value === undefined ? "-"
  : value >= 1e9 ? (value / 1e9).toFixed(1) + " GB" : value >= 1e6 ? (value / 1e6).toFixed(1) + " MB"
  : value >= 1e3 ? (value / 1e3).toFixed(1) + " kB" : Math.round(value) + " B";
const percent = share => share === null || share === undefined ? "-" : (100 * share).toFixed(1) + " %";

function table(columns, rows) {
  const made = make("table"), head = make("tr");
  for (const name of columns) head.append(make("th", name.replace("#", ""), name.startsWith("#") ? "number" : ""));
  made.append(head);
  for (const row of rows) {
    const line = make("tr");
    row.forEach((cell, i) => line.append(make("td", cell, columns[i].startsWith("#") ? "number" : "")));
    made.append(line);
  }
  return made;
}

/* ---------------------------------------------------------------------------------------- batches */

function take(entry) {
  const name = `${entry.query || entry.query_id} / ${entry.operator}`;
  if (!known.series.has(name)) {
    known.series.set(name, []);
    at("operator").append(new Option(name, name));
  }
  const series = known.series.get(name), before = series[series.length - 1];
  const end = Date.parse(entry.timestamp) / 1000 + entry.batch_ms / 1000;
  const seconds = before && end > before.end ? end - before.end : null;
  series.push({ end, seconds, entry });
  if (series.length > MAX_ENTRIES) series.shift();
}

/* The rate of a field in the newest micro-batches. */
function rateOf(series, name) {
  const timed = series.slice(-10).filter(one => one.seconds);
  const total = timed.reduce((sum, one) => sum + one.entry[name], 0);
  return timed.length ? total / timed.reduce((sum, one) => sum + one.seconds, 0) : null;
}

const stale = (entry, part) => (entry.application_staleness_ms || {})[part] ?? null;
const share = entry => entry.rows_in ? entry.conflated / entry.rows_in : null;
const phases = series => [...new Set(series.flatMap(one => Object.keys(one.entry.spark_ms || {})))]
  .filter(name => name !== "triggerExecution").sort();

function shown() {
  const series = known.series.get(at("operator").value) || [], span = Number(at("span").value);
  if (!span || !series.length) return series;
  const first = series[series.length - 1].end - span;
  return series.filter(one => one.end >= first);
}

/* ----------------------------------------------------------------------------------------- charts */

const line = (label, read, extra) => ({ label, read, ...extra });

function specs(series) {
  const rate = name => one => one.seconds ? one.entry[name] / one.seconds : null;
  const found = [
    { title: "Staleness", format: time, lines: [
      line("p50", one => stale(one.entry, "p50")), line("p95", one => stale(one.entry, "p95")),
      ...promised(series) ] },
    { title: "Waiting keys", format: number, lines: [line("waiting", one => one.entry.waiting_keys)] },
    { title: "Rows a second", format: number, lines: [line("in", rate("rows_in")), line("out", rate("rows_out"))] },
    { title: "Conflated share", format: percent, lines: [line("conflated", one => share(one.entry))] },
    { title: "Micro-batch", format: time, stacked: true, lines: phases(series).map(name =>
      line(name, one => (one.entry.spark_ms || {})[name] || 0)) },
    { title: "State", format: bytes, lines: [line("memory", one => one.entry.state_bytes),
      line("written", one => one.entry.state_bytes_written)] },
  ];
  if (series.some(one => one.entry.committed || one.entry.rejected)) {
    found.push({ title: "Transactions a second", format: number, lines: [
      line("committed", rate("committed")), line("rejected", rate("rejected"))] });
  }
  return found;
}

function promised(series) {
  const classes = new Set(series.flatMap(one => Object.keys(one.entry.classes || {}))), standing = (one, name) =>
    (one.entry.classes || {})[name] || {};
  return [...classes].sort().flatMap(name => [
    line(`${name} p95`, one => (standing(one, name).staleness_ms || {}).p95 ?? null),
    line(`${name} promised`, one => standing(one, name).promised_ms ?? null, { dash: [6, 3] })]);
}

function draw() {
  const series = shown(), wanted = specs(series);
  wanted.forEach((spec, i) => {
    const key = spec.title + spec.lines.map(one => one.label);
    if (!charts[i] || charts[i].key !== key) {
      const element = make("div", undefined, "chart");
      element.append(make("h2", spec.title));
      if (charts[i]) { charts[i].plot.destroy(); charts[i].element.replaceWith(element); } else at("charts").append(element);
      charts[i] = { key, element, plot: plot(spec, element) };
    }
    charts[i].plot.setData(data(spec, series));
  });
  for (const chart of charts.splice(wanted.length)) { chart.plot.destroy(); chart.element.remove(); }
}

function data(spec, series) {
  const columns = spec.lines.map(one => series.map(one.read));
  if (spec.stacked) {
    // The last series is at the bottom, and each one is drawn over those above it.
    for (let i = columns.length - 2; i >= 0; i--) columns[i] = columns[i].map((value, k) => value + columns[i + 1][k]);
  }
  return [series.map(one => one.end), ...columns];
}

function plot(spec, element) {
  const style = getComputedStyle(document.documentElement);
  const axis = { stroke: style.getPropertyValue("--dim"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
  const own = (u, value, i, k) => !spec.stacked || k === null || i === spec.lines.length || value === null
    ? spec.format(value) : spec.format(value - u.data[i + 1][k]);
  const made = new uPlot({
    width: Math.max(element.clientWidth - 24, 200), height: 170, cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    axes: [axis, { ...axis, size: 64, values: (u, ticks) => ticks.map(spec.format) }],
    series: [{}, ...spec.lines.map((one, i) => ({
      label: one.label, stroke: COLOURS[i % COLOURS.length], width: 1.5, dash: one.dash, spanGaps: true, value: own,
      fill: spec.stacked ? COLOURS[i % COLOURS.length] : undefined, points: { show: false },
    }))],
  }, [[]], element);
  new ResizeObserver(() => made.setSize({ width: Math.max(element.clientWidth - 24, 200), height: 170 })).observe(element);
  return made;
}

/* ------------------------------------------------------------------------------ tiles and warnings */

function tiles() {
  const series = shown(), newest = series[series.length - 1];
  at("tiles").replaceChildren();
  if (!newest) return;
  const sum = name => series.slice(-10).reduce((total, one) => total + one.entry[name], 0);
  const facts = [
    ["staleness p50", time(stale(newest.entry, "p50"))], ["staleness p95", time(stale(newest.entry, "p95"))],
    ["waiting keys", number(newest.entry.waiting_keys)], ["rows in a second", number(rateOf(series, "rows_in"))],
    ["rows out a second", number(rateOf(series, "rows_out"))],
    ["conflated", percent(sum("rows_in") ? sum("conflated") / sum("rows_in") : null)],
    ["micro-batch", time(newest.entry.batch_ms)], ["batch", String(newest.entry.batch_id)],
  ];
  for (const [name, value] of facts) {
    const tile = make("div", undefined, "tile");
    tile.dataset.name = name;
    tile.append(make("b", value), make("span", name));
    at("tiles").append(tile);
  }
}

function alerts() {
  const found = [];
  for (const [name, series] of known.series) {
    const entry = series[series.length - 1].entry;
    for (const text of broken(entry)) found.push(`${name}: ${text}`);
    if (series.slice(-10).some(one => one.entry.bad_records)) found.push(`${name}: some records could not be read`);
  }
  for (const place of places()) if (place.damage) found.push(`${place.name}: ${place.damage} damaged files`);
  for (const [what, value] of [["graph", known.graph], ["storage", known.storage]]) {
    if (value && value.error) found.push(`${what}: ${value.error}`);
  }
  at("alerts").replaceChildren(...found.map(text => make("li", text)));
}

function broken(entry) {
  return Object.entries(entry.classes || {}).filter(([, one]) => one.kept === false).map(([name, one]) =>
    `the contract for ${name} is broken: p95 ${time((one.staleness_ms || {}).p95)}, promised ${time(one.promised_ms)}`);
}

function promises() {
  const rows = [];
  for (const [name, series] of known.series) {
    for (const [kind, one] of Object.entries(series[series.length - 1].entry.classes || {})) {
      rows.push([name, kind, time(one.promised_ms), time((one.staleness_ms || {}).p95), percent(one.within),
        one.kept ? "kept" : "broken", one.advice || ""]);
    }
  }
  at("promises").hidden = !rows.length;
  at("promises").lastElementChild.replaceChildren(
    table(["operator", "class", "#promised", "#p95", "#within", "now", "what would help"], rows));
}

function rejections() {
  const counts = new Map();
  for (const one of shown()) for (const [why, count] of Object.entries(one.entry.rejections || {})) {
    counts.set(why, (counts.get(why) || 0) + count);
  }
  const rows = [...counts].sort((a, b) => b[1] - a[1]).map(([why, count]) => [why, number(count)]);
  at("rejections").hidden = !rows.length;
  at("rejections").lastElementChild.replaceChildren(table(["reason", "#transactions"], rows));
}

/* ------------------------------------------------------------------------------- graph and storage */

function graph() {
  const facts = known.graph;
  if (!facts || !facts.plan) { at("graph").textContent = "The graph is not known yet."; return; }
  const nodes = facts.plan.as_planned, layers = [], layer = new Map();
  for (const node of nodes) {
    const own = 1 + Math.max(-1, ...node.inputs.map(input => layer.get(input)));
    layer.set(node.id, own);
    (layers[own] = layers[own] || []).push(node);
  }
  const parts = [];
  for (const row of layers) {
    if (parts.length) parts.push(make("div", "\u25bc", "arrow"));
    const line = make("div", undefined, "layer");
    line.append(...row.map(node => box(node, facts)));
    parts.push(line);
  }
  at("graph").replaceChildren(...parts);
}

function box(node, facts) {
  const made = make("div", undefined, "node " + node.kind.replace(/ .*/, ""));
  made.append(make("b", node.kind === node.name ? node.kind : `${node.kind} ${node.name}`), make("div", node.does, "dim"));
  for (const [name, series] of known.series) {
    if (!name.endsWith(` / ${node.name}`)) continue;
    made.classList.add("works");
    made.append(make("div",
      `${number(rateOf(series, "rows_in"))} rows/s in, ${number(rateOf(series, "rows_out"))} rows/s out`));
  }
  // A source of the same name feeds the p-stream, unless it is the p-stream.
  const isStream = node.kind === "p-stream" || (node.kind === "source"
    && !facts.plan.as_planned.some(one => one.kind === "p-stream" && one.name === node.name));
  for (const stream of facts.streams.filter(one => isStream && one.name === node.name)) {
    const rate = known.streams.get(stream.name);
    made.classList.add("p-stream");
    made.append(make("div", `${number(stream.end)} rows${rate === undefined ? "" : `, ${number(rate)} rows/s`}, `
      + `${bytes(stream.size_bytes)}`));
    for (const reader of stream.readers) made.append(make("div", `${reader.query} lags ${number(reader.lag)} rows`, "dim"));
  }
  return made;
}

const places = () => [...((known.storage || {}).p_streams || []), ...((known.storage || {}).state || [])];

function storage() {
  const parts = [];
  for (const place of places()) {
    const kind = place.buckets === undefined ? "p-stream" : `state in ${place.buckets} ${place.buckets === 1 ? "bucket" : "buckets"}`;
    parts.push(make("h3", `${place.name}: ${kind}, ${bytes(place.bytes)}, garbage ${bytes(place.garbage_bytes)}`));
    parts.push(table(["column", "type", "#before", "#after", "#ratio", "codecs"], place.columns.map(one => [
      one.name, one.type, bytes(one.raw_bytes), bytes(one.coded_bytes),
      one.coded_bytes ? (one.raw_bytes / one.coded_bytes).toFixed(1) : "-", one.codecs])));
  }
  if (parts.length) parts.push(make("p", "Before and after compression, in the newest file.", "dim"));
  at("storage").replaceChildren(...(parts.length ? parts : [make("p", "Nothing is stored yet.", "dim")]));
}

/* ------------------------------------------------------------------------------------------- polls */

async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

async function pollBatches() {
  for (;;) {
    const answer = await ask(`api/batches?after=${known.last}`);
    if (answer.session !== known.session) {
      const first = known.session === "";
      known.session = answer.session; known.last = 0; known.series.clear(); at("operator").replaceChildren();
      if (!first) continue;
    }
    for (const entry of answer.entries) { take(entry); known.last = entry.number; }
    if (!answer.entries.length) break;
  }
  draw(); tiles(); promises(); rejections(); alerts();
}

async function pollGraph() {
  const facts = await ask("api/graph"), now = performance.now(), before = known.graph;
  if (before && before.streams && facts.streams && now > known.answered) {
    for (const stream of facts.streams) {
      const old = before.streams.find(one => one.name === stream.name);
      if (old) known.streams.set(stream.name, 1000 * (stream.end - old.end) / (now - known.answered));
    }
  }
  known.graph = facts; known.answered = now;
  graph();
}

async function pollStorage() {
  known.storage = await ask("api/storage");
  storage();
}

function status() {
  const newest = Math.max(0, ...[...known.series.values()].map(series => series[series.length - 1].end));
  const seconds = Math.max(Math.round(Date.now() / 1000 - newest), 0);
  at("status").className = newest && seconds < 60 ? "live" : "";
  at("status").textContent = !newest ? "no micro-batch has ended yet"
    : seconds < 5 ? "live" : `last micro-batch ${time(1000 * seconds)} ago`;
}

function every(ms, poll) {
  const run = async () => {
    try { await poll(); if (poll === pollBatches) status(); }
    catch (error) { at("status").className = "lost"; at("status").textContent = `the dashboard does not answer (${error.message})`; }
    setTimeout(run, ms);
  };
  run();
}

window.addEventListener("load", async () => {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts.splice(0)) { chart.plot.destroy(); chart.element.remove(); }
    draw();
  });
  for (const id of ["operator", "span"]) at(id).addEventListener("change", () => { draw(); tiles(); rejections(); });
  every(1000, pollBatches);
  every(3000, pollGraph);
  every(10000, pollStorage);
  const about = await ask("api/about");
  at("title").textContent = document.title = `${about.title} - Penstock`;
});
