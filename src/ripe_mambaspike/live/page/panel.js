// The predictions: kept by when they were due, shown as a verdict, as bars, and over time.
import { ink, lineChart, stackedBars } from '/charts.js';

const MOST_BARS = 12, COLOURS = 12, NOTABLE = .1, LIVE_SECONDS = 30, RECENT = 200;
const STAGES = ['--c0', '--c1', '--c2'];
const $ = id => document.getElementById(id);
const percent = share => `${(100 * share).toFixed(1)} %`;
const milliseconds = value => value >= 100 ? `${value.toFixed(0)} ms` : `${value.toPrecision(2)} ms`;

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

/** Show a name so that a line may end after its underscores. */
function showName(target, name) {
  target.replaceChildren(...name.split(/(?<=_)/).flatMap((part, index) => index ? [element('wbr'), part] : [part]));
}

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

export class Panel {
  constructor() {
    this.classes = [];
    this.clear();
  }

  clear() {
    this.known = new Map();  // by window and step, so that a second round adds nothing
    this.predictions = [];
    this.colours = new Map();
    this.live = false;
    this.seconds = 0;
    this.shown = undefined;
  }

  add(predictions) {
    for (const prediction of predictions) {
      const key = `${prediction.from}/${prediction.step}`, old = this.known.get(key);
      if (old) { old.attention = prediction.attention || old.attention; continue; }
      prediction.final = prediction.step === prediction.time_steps;
      this.known.set(key, prediction);
      this.predictions.push(prediction);
    }
    if (this.live && this.predictions.length > 2000) {
      for (const gone of this.predictions.splice(0, 1000)) this.known.delete(`${gone.from}/${gone.step}`);
    }
    this.predictions.sort((a, b) => a.at - b.at || a.final - b.final);
  }

  /** The predictions that count: early ones only until the first window was full. */
  timeline() {
    const first = this.predictions.find(prediction => prediction.final);
    return this.predictions.filter(prediction => prediction.final || !first || prediction.at < first.at);
  }

  /** When the last prediction was due. */
  newest() {
    return this.predictions.length ? this.predictions[this.predictions.length - 1].at : 0;
  }

  colourOf(number) {
    return this.colours.has(number) ? ink(`--c${this.colours.get(number)}`) : ink('--rest');
  }

  /** Colours for the classes that led or came near it in these predictions, first come first served; the rest is grey. */
  paint(predictions) {
    const notable = new Set();
    for (const prediction of predictions) notable.add(this.leading(prediction));
    for (const prediction of predictions) prediction.p.forEach((share, number) => { if (share >= NOTABLE) notable.add(number); });
    for (const number of [...this.colours.keys()]) if (!notable.has(number)) this.colours.delete(number);
    const used = new Set(this.colours.values());
    for (const number of notable) {
      if (this.colours.has(number)) continue;
      const free = [...Array(COLOURS).keys()].find(one => !used.has(one));
      if (free === undefined) return;
      used.add(free);
      this.colours.set(number, free);
    }
  }

  /** What of the recording, or of the live source, the charts show, in s. */
  span(position) {
    return this.live ? [Math.max(0, position - LIVE_SECONDS), Math.max(position, 1)] : [0, Math.max(this.seconds, .1)];
  }

  /** Show what was known at this position of the recording (s). Returns the attention to lay over the events. */
  show(position) {
    const timeline = this.timeline(), due = timeline.filter(prediction => prediction.at <= position + 1e-6);
    const current = due[due.length - 1], span = this.span(position);
    const near = timeline.filter(prediction => prediction.at >= span[0]);
    this.paint(near);
    this.verdict(current);
    this.early(position, current);
    this.charts(near, span, position);
    const seen = this.predictions.filter(prediction => prediction.at <= position + 1e-6 && prediction.attention);
    return seen.length ? seen[seen.length - 1].attention : null;
  }

  /** The strongest attention of the whole recording, or of what is kept of a live source: one scale for all maps. */
  reach() {
    return this.predictions.reduce((most, { attention }) => attention ? Math.max(most, attention.max) : most, 0);
  }

  leading(prediction) {
    let best = 0;
    prediction.p.forEach((share, index) => { if (share > prediction.p[best]) best = index; });
    return best;
  }

  verdict(prediction) {
    if (prediction && prediction === this.shown) return;
    this.shown = prediction;
    if (!prediction) {
      $('label').textContent = '–';
      $('share').textContent = '';
      $('kind').textContent = 'No prediction yet.';
      $('bars').replaceChildren();
      return;
    }
    const best = this.leading(prediction);
    showName($('label'), prediction.unknown ? 'unknown' : this.classes[best]);
    const share = percent(prediction.p[best]);
    $('share').textContent = prediction.unknown ? `at best ${this.classes[best]} ${share}` : share;
    const window = `${prediction.from.toFixed(2)}–${prediction.to.toFixed(2)} s`;
    $('kind').textContent = prediction.final ? `The window ${window}, all ${prediction.time_steps} steps`
      : `So far: ${prediction.step} of ${prediction.time_steps} steps of the window ${window}`;
    this.bars(prediction);
  }

  bars(prediction) {
    let order = prediction.p.map((_, index) => index);
    if (order.length > MOST_BARS) order = order.sort((a, b) => prediction.p[b] - prediction.p[a]).slice(0, MOST_BARS);
    const list = $('bars');
    while (list.children.length > order.length) list.lastChild.remove();
    order.forEach((number, row) => {
      let item = list.children[row];
      if (!item) {
        const rail = element('div', '', element('div'));
        rail.className = 'rail';
        item = element('li', '', element('span'), rail, element('span'));
        list.append(item);
      }
      const [name, rail, share] = item.children;
      showName(name, this.classes[number]);
      share.textContent = percent(prediction.p[number]);
      rail.firstChild.style.width = `${100 * prediction.p[number]}%`;
      rail.firstChild.style.background = number === this.leading(prediction) ? this.colourOf(number) : ink('--grey');
    });
  }

  /** The window that is being filled: what it says so far. */
  early(position, current) {
    const open = this.predictions.filter(one => !one.final && one.at <= position + 1e-6 && one.to > position);
    const prediction = open[open.length - 1];
    $('early').hidden = !prediction || prediction === current;
    if (!prediction) return;
    const best = this.leading(prediction);
    $('early-text').textContent = `of the window that ends at ${prediction.to.toFixed(2)} s, ${prediction.step} of ` +
      `${prediction.time_steps} steps: ${prediction.unknown ? 'unknown, at best ' : ''}${this.classes[best]} ${percent(prediction.p[best])}`;
    $('early-bar').style.width = `${100 * prediction.step / prediction.time_steps}%`;
  }

  charts(near, span, position) {
    let before = null;
    const bars = near.map(prediction => {
      const from = before === null ? (prediction.final ? prediction.from : prediction.at - (prediction.to - prediction.from) / prediction.time_steps)
        : before;
      before = prediction.at;
      const order = prediction.p.map((share, index) => [index, share]).filter(([index]) => this.colours.has(index))
        .sort((a, b) => b[1] - a[1]);
      const rest = 1 - order.reduce((sum, [, share]) => sum + share, 0);
      return { from, at: prediction.at, shares: [...order, [-1, rest]], early: !prediction.final, later: prediction.at > position + 1e-6 };
    });
    const at = this.live ? null : position;
    stackedBars($('predictions'), span, bars, number => this.colourOf(number), at);
    this.legend(bars);
    const lines = STAGES.map((name, stage) => ({
      colour: ink(name),
      points: near.filter(prediction => stage < prediction.rates.length)
        .map(prediction => [prediction.at, 100 * prediction.rates[stage], prediction.at > position + 1e-6]),
    }));
    lineChart($('rates'), span, lines, value => `${+value.toPrecision(2)} %`, at);
    const times = near.map(prediction => [prediction.at, prediction.ms, prediction.at > position + 1e-6]);
    lineChart($('latency'), span, [{ colour: ink('--accent'), points: times }], value => `${+value.toPrecision(2)} ms`,
      at, times.length < 60);
    this.numbers(near.filter(prediction => prediction.at <= position + 1e-6));
  }

  legend(bars) {
    const drawn = bars.length ? [...this.colours.keys()] : [];
    if (bars.some(bar => bar.shares.some(([number, share]) => number < 0 && share >= .005))) drawn.push(-1);
    const entries = drawn.map(number => {
      const mark = element('i');
      mark.style.background = this.colourOf(number);
      return element('span', '', mark, document.createTextNode(number < 0 ? 'others' : this.classes[number]));
    });
    if (bars.some(bar => bar.early || bar.later)) entries.push(element('span', 'pale: early or to come'));
    $('legend').replaceChildren(...entries);
  }

  numbers(predictions) {
    const last = predictions[predictions.length - 1];
    if (!last) {
      $('rates-text').textContent = 'Share of neurons that fire, by stage.';
      $('latency-text').textContent = 'From the end of a bin to its prediction.';
      return;
    }
    $('rates-text').replaceChildren(...last.rates.map((rate, stage) => {
      const mark = element('i');
      mark.style.background = ink(STAGES[stage % STAGES.length]);
      return element('span', '', mark, document.createTextNode(`stage ${stage + 1}: ${percent(rate)}`));
    }));
    const sorted = predictions.slice(-RECENT).map(prediction => prediction.ms).sort((a, b) => a - b);
    $('latency-text').textContent = `bin closed → prediction: median ${milliseconds(quantile(sorted, .5))}, ` +
      `95 % within ${milliseconds(quantile(sorted, .95))}`;
  }
}
