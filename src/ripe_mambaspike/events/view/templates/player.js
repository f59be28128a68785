"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);

// Columns: [type, base64]. Times are the gaps between one event and the next, in µs.
const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };
function unpack([type, text]) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new TYPES[type](bytes.buffer);
}
const t = Float64Array.from(unpack(D.events.gap)), bits = unpack(D.events.p);
for (let i = 1; i < t.length; i++) t[i] += t[i - 1];
const column = unpack(D.events.x), row = unpack(D.events.y);

// A sensor wider than its place is drawn with several pixels as one, so that no event falls between.
const stage = $("events"), pen = stage.getContext("2d"), cells = new Uint32Array(t.length);
let shrink = 0, image, pixels, counts;
stage.style.setProperty("--aspect", D.width / D.height);
function fit() {
  const place = Math.min(document.querySelector("main").clientWidth - 32, innerHeight * .52 * D.width / D.height);
  const needed = Math.max(1, Math.ceil(D.width / Math.max(place * (devicePixelRatio || 1), 1) - .1));
  if (needed == shrink) return;
  shrink = needed;
  const wide = Math.ceil(D.width / shrink), high = Math.ceil(D.height / shrink);
  for (let i = 0; i < t.length; i++) {
    const cell = Math.floor(row[i] / shrink) * wide + Math.floor(column[i] / shrink);
    cells[i] = 2 * cell + (bits[i >> 3] >> (i & 7) & 1);
  }
  stage.width = wide; stage.height = high;
  stage.title = shrink > 1 ? `${shrink}×${shrink} pixels of the sensor are drawn as one` : "";
  image = pen.createImageData(wide, high);
  pixels = new Uint32Array(image.data.buffer);
  counts = new Uint32Array(2 * wide * high);
}

// The events with now - window < t <= now, drawn by how many a pixel had.
const table = unpack(D.palette), colours = new Uint32Array(D.levels * D.levels);
new Uint8Array(colours.buffer).forEach((_, i, all) => { all[i] = i % 4 == 3 ? 255 : table[(i >> 2) * 3 + i % 4]; });
const state = { now: 0, window: D.window, playing: false, last: 0 };

function upTo(time) { // how many events are not later
  let low = 0, end = t.length;
  while (low < end) { const middle = low + end >> 1; if (t[middle] <= time) low = middle + 1; else end = middle; }
  return low;
}
function draw() {
  const from = upTo(state.now - state.window), to = upTo(state.now), top = D.levels - 1;
  const part = top / fullColour();
  pixels.fill(colours[0]);
  for (let i = from; i < to; i++) counts[cells[i]]++;
  for (let i = from; i < to; i++) {
    const cell = cells[i] >> 1;
    const off = Math.min(top, Math.ceil(counts[2 * cell] * part));
    const on = Math.min(top, Math.ceil(counts[2 * cell + 1] * part));
    pixels[cell] = colours[on * D.levels + off];
  }
  for (let i = from; i < to; i++) counts[cells[i]] = 0;
  pen.putImageData(image, 0, 0);
  const at = time => 100 * Math.max(0, time) / Math.max(D.span, 1) + "%";
  $("cursor").style.left = at(state.now);
  $("band").style.left = at(state.now - state.window);
  $("band").style.width = at(Math.min(state.now, state.window));
  $("time").value = state.now;
  $("clock").textContent = timeText(state.now, D.span);
  $("length").textContent = timeText(state.window, state.window);
  $("count").textContent = (to - from).toLocaleString("en") + (to - from == 1 ? " event" : " events");
}
function fullColour() { // events a pixel, known for some windows and taken in between for the others
  const at = Number($("window").value) * (D.scales.length - 1), below = Math.min(Math.floor(at), D.scales.length - 2);
  return D.scales[below] + (at - below) * (D.scales[below + 1] - D.scales[below]);
}
const unitOf = like => like >= 1e7 ? [1e6, "s"] : like >= 1e3 ? [1e3, "ms"] : [1, "µs"];
function timeText(us, like) {
  const [unit, name] = unitOf(like);
  const decimals = unit == 1 ? 0 : like / unit >= 100 ? (unit == 1e6 ? 1 : 0) : like / unit >= 10 ? 1 : 2;
  return (us / unit).toFixed(decimals) + " " + name;
}

// The rate, ON above and OFF below.
function drawRate() {
  const canvas = $("rate"), sharp = devicePixelRatio || 1, width = canvas.clientWidth, height = 150;
  canvas.width = width * sharp; canvas.height = 170 * sharp;
  const ink = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();
  ink.scale(sharp, sharp);
  ink.font = "12px system-ui, sans-serif";
  const edges = D.rate.edges, span = Math.max(D.span, 1), x = us => us / span * width;
  ink.fillStyle = colour("--grey");
  if (!D.span) { ink.fillText("all events at one time", 8, height / 2 - 8); return; }
  const perSecond = name => D.rate[name].map((count, i) => count / (edges[i + 1] - edges[i]) * 1e6);
  const rates = { on: perSecond("on"), off: perSecond("off") };
  const most = Math.max(...rates.on, ...rates.off), middle = height / 2;
  for (const [name, sign] of [["on", -1], ["off", 1]]) {
    ink.fillStyle = ink.strokeStyle = colour("--" + name);
    const line = new Path2D();
    rates[name].forEach((value, i) => {
      const y = middle + sign * value / most * (middle - 18);
      line.lineTo(x(edges[i]), y);
      line.lineTo(x(edges[i + 1]), y);
    });
    const area = new Path2D(line);
    area.lineTo(width, middle); area.lineTo(0, middle);
    ink.globalAlpha = .28; ink.fill(area);
    ink.globalAlpha = 1; ink.lineWidth = 1.5; ink.stroke(line);
    const peak = short(Math.max(...rates[name]));
    ink.fillText(`${name.toUpperCase()}, up to ${peak} events/s`, 4, sign < 0 ? 11 : height - 4);
  }
  ink.fillStyle = colour("--grey"); ink.strokeStyle = colour("--line"); ink.lineWidth = 1;
  const rough = span / Math.max(2, width / 85), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(digit => digit * power).find(value => value >= rough);
  for (let us = 0; us <= span; us += step) {
    ink.beginPath(); ink.moveTo(x(us), height); ink.lineTo(x(us), height + 4); ink.stroke();
    const [unit, name] = unitOf(span), text = Number((us / unit).toPrecision(6)) + " " + name;
    const size = ink.measureText(text).width;
    ink.fillText(text, Math.min(Math.max(x(us) - size / 2, 0), width - size), height + 17);
  }
  ink.beginPath(); ink.moveTo(0, middle); ink.lineTo(width, middle); ink.stroke();
}
function short(value) {
  const [unit, name] = value >= 1e6 ? [1e6, "M"] : value >= 1e3 ? [1e3, "k"] : [1, ""];
  return Number((value / unit).toPrecision(value / unit >= 100 ? 3 : 2)) + name;
}

// Playing, and everything that moves it.
function go(time) { state.now = Math.min(Math.max(time, 0), D.span); draw(); }
function play(on) {
  state.playing = on; state.last = 0;
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  $("play").querySelector("path").setAttribute("d", on ? "M6 5h4v14H6zM14 5h4v14h-4z" : "M8 5v14l11-7z");
  if (on) requestAnimationFrame(tick);
}
function tick(moment) {
  if (!state.playing) return;
  const passed = state.last ? Math.min(moment - state.last, 100) : 0;
  state.last = moment;
  const next = state.now + passed * 1000 / Number($("speed").value);
  go(state.now >= D.span ? 0 : next);
  requestAnimationFrame(tick);
}
const [least, longest] = [D.windows[0], D.windows[1]];
$("window").value = longest > least ? Math.log(D.window / least) / Math.log(longest / least) : 1;
$("window").oninput = event => { state.window = least * (longest / least) ** event.target.value; draw(); };
$("time").max = D.span;
$("time").oninput = event => go(Number(event.target.value));
$("play").onclick = () => play(!state.playing);
const seek = event => {
  const box = $("plot").getBoundingClientRect();
  go((event.clientX - box.left) / box.width * D.span);
};
$("plot").onpointerdown = event => { $("plot").setPointerCapture(event.pointerId); seek(event); };
$("plot").onpointermove = event => { if (event.buttons) seek(event); };
document.onkeydown = event => {
  const { key, target } = event, speed = $("speed");
  if (event.ctrlKey || event.altKey || event.metaKey || target == speed) return;
  if (key == " " && target.tagName != "BUTTON" && target.tagName != "SUMMARY") play(!state.playing);
  else if (target == $("window")) return;
  else if (key == "ArrowLeft" || key == "ArrowRight") {
    go(state.now + (key == "ArrowLeft" ? -1 : 1) * state.window * (event.shiftKey ? 10 : 1));
  } else if (key == "ArrowUp" || key == "ArrowDown") {
    const index = speed.selectedIndex + (key == "ArrowUp" ? 1 : -1);
    speed.selectedIndex = Math.min(Math.max(index, 0), speed.length - 1);
  } else if (key == "Home" || key == "End") go(key == "Home" ? 0 : D.span);
  else return;
  event.preventDefault();
};
addEventListener("resize", () => { fit(); draw(); drawRate(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawRate);
fit();
drawRate();
go(Math.min(state.window, D.span));
play(D.span > 0 && !matchMedia("(prefers-reduced-motion: reduce)").matches);
