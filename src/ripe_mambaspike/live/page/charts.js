// Charts on plain canvases: stacked bars of probabilities, and lines. They know nothing of where the numbers come from.
const LEFT = 50, RIGHT = 8, TOP = 8, BOTTOM = 20;

/** The value of a colour of the page's style. */
export const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A canvas of as many pixels as the screen shows, cleared; its context in CSS pixels and its size. */
function sheet(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = '11px system-ui, sans-serif';
  return { pen, width, height };
}

/** A step of 1, 2 or 5 times a power of ten that gives about so many marks. */
function niceStep(span, marks) {
  const rough = span / marks, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map(one => one * power).find(step => step >= rough) || power;
}

/** Axes with their marks; functions from seconds and values to places. */
function axes(canvas, [start, stop], [low, high], write, marks = 2) {
  const { pen, width, height } = sheet(canvas);
  const inner = width - LEFT - RIGHT, tall = height - TOP - BOTTOM;
  const x = at => LEFT + (at - start) / Math.max(stop - start, 1e-9) * inner;
  const y = value => TOP + (1 - (value - low) / Math.max(high - low, 1e-12)) * tall;
  pen.strokeStyle = ink('--line');
  pen.fillStyle = ink('--grey');
  pen.lineWidth = 1;
  pen.textBaseline = 'middle';
  pen.textAlign = 'right';
  for (let mark = 0; mark <= marks; mark++) {
    const value = low + (high - low) * mark / marks, level = Math.round(y(value)) + .5;
    pen.beginPath(); pen.moveTo(LEFT, level); pen.lineTo(width - RIGHT, level); pen.stroke();
    pen.fillText(write(value), LEFT - 6, level);
  }
  pen.textBaseline = 'alphabetic';
  const step = niceStep(Math.max(stop - start, 1e-6), Math.max(2, inner / 90));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (let at = Math.ceil(start / step) * step; at <= stop + step * 1e-6; at += step) {
    pen.textAlign = at - start < step * .01 ? 'left' : stop - at < step * .3 ? 'right' : 'center';
    pen.fillText(`${at.toFixed(digits)} s`, x(at), height - 5);
  }
  return { pen, x, y, height };
}

/** Where it is being watched. */
function cursor({ pen, x, y }, at, [low, high]) {
  if (at === null) return;
  pen.strokeStyle = ink('--ink');
  pen.globalAlpha = .6;
  pen.beginPath(); pen.moveTo(x(at), y(low)); pen.lineTo(x(at), y(high)); pen.stroke();
  pen.globalAlpha = 1;
}

/** Bars from the prediction before to this one, each stacked by class. `bars`: {from, at, shares, early, later}. */
export function stackedBars(canvas, span, bars, colourOf, at) {
  const paper = axes(canvas, span, [0, 1], value => `${Math.round(100 * value)} %`);
  const { pen, x, y } = paper;
  for (const bar of bars) {
    const left = Math.max(x(bar.from), LEFT), right = x(bar.at);
    if (right <= left) continue;
    const gap = right - left > 5 ? 1 : 0;
    let below = 0;
    for (const [name, share] of bar.shares) {
      pen.fillStyle = colourOf(name);
      pen.globalAlpha = (bar.later ? .22 : 1) * (bar.early ? .5 : 1);
      pen.fillRect(left, y(below + share), right - left - gap, y(below) - y(below + share));
      below += share;
    }
  }
  pen.globalAlpha = 1;
  cursor(paper, at, [0, 1]);
}

/** Lines over time. `lines`: {colour, points: [[at, value, later], …]}; the scale is the largest value's. */
export function lineChart(canvas, span, lines, write, at, dots = false) {
  const largest = Math.max(...lines.flatMap(line => line.points.map(point => point[1])), 1e-9);
  const step = niceStep(largest * 1.05, 2), high = Math.ceil(largest * 1.05 / step) * step;
  const paper = axes(canvas, span, [0, high], write);
  const { pen, x, y } = paper;
  pen.save();
  pen.beginPath(); pen.rect(LEFT, 0, canvas.clientWidth - LEFT - RIGHT + 2, canvas.clientHeight); pen.clip();
  pen.lineWidth = 1.8;
  pen.lineJoin = 'round';
  for (const { colour, points } of lines) {
    pen.strokeStyle = pen.fillStyle = colour;
    for (const later of [false, true]) {
      const shown = points.filter(point => point[2] === later);
      pen.globalAlpha = later ? .25 : 1;
      pen.beginPath();
      shown.forEach(([when, value], index) => index ? pen.lineTo(x(when), y(value)) : pen.moveTo(x(when), y(value)));
      pen.stroke();
      if (dots || shown.length === 1) for (const [when, value] of shown) {
        pen.beginPath(); pen.arc(x(when), y(value), 2.2, 0, 7); pen.fill();
      }
    }
  }
  pen.restore();
  cursor(paper, at, [0, high]);
}
