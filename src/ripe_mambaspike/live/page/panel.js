// The answers: kept by when they were due, shown as a verdict, as bars, and over time.
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
function showName(place, name) {
  place.replaceChildren(...name.split(/(?<=_)/).flatMap((part, index) => index ? [element('wbr'), part] : [part]));
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
    this.answers = [];
    this.colours = new Map();
    this.live = false;
    this.seconds = 0;
    this.shown = undefined;
  }

  add(answers) {
    for (const answer of answers) {
      const key = `${answer.from}/${answer.step}`, old = this.known.get(key);
      if (old) { old.attention = answer.attention || old.attention; continue; }
      answer.final = answer.step === answer.steps;
      this.known.set(key, answer);
      this.answers.push(answer);
    }
    if (this.live && this.answers.length > 2000) {
      for (const gone of this.answers.splice(0, 1000)) this.known.delete(`${gone.from}/${gone.step}`);
    }
    this.answers.sort((a, b) => a.at - b.at || a.final - b.final);
  }

  /** The answers that count: early ones only until the first window was full. */
  timeline() {
    const first = this.answers.find(answer => answer.final);
    return this.answers.filter(answer => answer.final || !first || answer.at < first.at);
  }

  /** When the last answer was due. */
  newest() {
    return this.answers.length ? this.answers[this.answers.length - 1].at : 0;
  }

  colourOf(number) {
    return this.colours.has(number) ? ink(`--c${this.colours.get(number)}`) : ink('--rest');
  }

  /** Colours for the classes that led or came near it in these answers, first come first served; the rest is grey. */
  paint(answers) {
    const notable = new Set();
    for (const answer of answers) notable.add(this.leading(answer));
    for (const answer of answers) answer.p.forEach((share, number) => { if (share >= NOTABLE) notable.add(number); });
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
  span(place) {
    return this.live ? [Math.max(0, place - LIVE_SECONDS), Math.max(place, 1)] : [0, Math.max(this.seconds, .1)];
  }

  /** Show what was known at this place of the recording (s). Returns the attention to lay over the events. */
  show(place) {
    const timeline = this.timeline(), due = timeline.filter(answer => answer.at <= place + 1e-6);
    const current = due[due.length - 1], span = this.span(place);
    const near = timeline.filter(answer => answer.at >= span[0]);
    this.paint(near);
    this.verdict(current);
    this.early(place, current);
    this.charts(near, span, place);
    const seen = this.answers.filter(answer => answer.at <= place + 1e-6 && answer.attention);
    return seen.length ? seen[seen.length - 1].attention : null;
  }

  /** The strongest attention of the whole recording, or of what is kept of a live source: one scale for all maps. */
  reach() {
    return this.answers.reduce((most, { attention }) => attention ? Math.max(most, attention.most) : most, 0);
  }

  leading(answer) {
    let best = 0;
    answer.p.forEach((share, index) => { if (share > answer.p[best]) best = index; });
    return best;
  }

  verdict(answer) {
    if (answer && answer === this.shown) return;
    this.shown = answer;
    if (!answer) {
      $('label').textContent = '–';
      $('share').textContent = '';
      $('kind').textContent = 'No answer yet.';
      $('bars').replaceChildren();
      return;
    }
    const best = this.leading(answer);
    showName($('label'), this.classes[best]);
    $('share').textContent = percent(answer.p[best]);
    const window = `${answer.from.toFixed(2)}–${answer.to.toFixed(2)} s`;
    $('kind').textContent = answer.final ? `The window ${window}, all ${answer.steps} steps`
      : `So far: ${answer.step} of ${answer.steps} steps of the window ${window}`;
    this.bars(answer);
  }

  bars(answer) {
    let order = answer.p.map((_, index) => index);
    if (order.length > MOST_BARS) order = order.sort((a, b) => answer.p[b] - answer.p[a]).slice(0, MOST_BARS);
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
      share.textContent = percent(answer.p[number]);
      rail.firstChild.style.width = `${100 * answer.p[number]}%`;
      rail.firstChild.style.background = number === this.leading(answer) ? this.colourOf(number) : ink('--grey');
    });
  }

  /** The window that is being filled: what it says so far. */
  early(place, current) {
    const open = this.answers.filter(one => !one.final && one.at <= place + 1e-6 && one.to > place);
    const answer = open[open.length - 1];
    $('early').hidden = !answer || answer === current;
    if (!answer) return;
    const best = this.leading(answer);
    $('early-text').textContent = `of the window that ends at ${answer.to.toFixed(2)} s, ${answer.step} of ` +
      `${answer.steps} steps: ${this.classes[best]} ${percent(answer.p[best])}`;
    $('early-bar').style.width = `${100 * answer.step / answer.steps}%`;
  }

  charts(near, span, place) {
    let before = null;
    const bars = near.map(answer => {
      const from = before === null ? (answer.final ? answer.from : answer.at - (answer.to - answer.from) / answer.steps)
        : before;
      before = answer.at;
      const order = answer.p.map((share, index) => [index, share]).filter(([index]) => this.colours.has(index))
        .sort((a, b) => b[1] - a[1]);
      const rest = 1 - order.reduce((sum, [, share]) => sum + share, 0);
      return { from, at: answer.at, shares: [...order, [-1, rest]], early: !answer.final, later: answer.at > place + 1e-6 };
    });
    const at = this.live ? null : place;
    stackedBars($('answers'), span, bars, number => this.colourOf(number), at);
    this.legend(bars);
    const lines = STAGES.map((name, stage) => ({
      colour: ink(name),
      points: near.filter(answer => stage < answer.rates.length)
        .map(answer => [answer.at, 100 * answer.rates[stage], answer.at > place + 1e-6]),
    }));
    lineChart($('rates'), span, lines, value => `${+value.toPrecision(2)} %`, at);
    const times = near.map(answer => [answer.at, answer.ms, answer.at > place + 1e-6]);
    lineChart($('latency'), span, [{ colour: ink('--accent'), points: times }], value => `${+value.toPrecision(2)} ms`,
      at, times.length < 60);
    this.numbers(near.filter(answer => answer.at <= place + 1e-6));
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

  numbers(answers) {
    const last = answers[answers.length - 1];
    if (!last) {
      $('rates-text').textContent = 'Share of neurons that fire, by stage.';
      $('latency-text').textContent = 'From the end of a bin to its answer.';
      return;
    }
    $('rates-text').replaceChildren(...last.rates.map((rate, stage) => {
      const mark = element('i');
      mark.style.background = ink(STAGES[stage % STAGES.length]);
      return element('span', '', mark, document.createTextNode(`stage ${stage + 1}: ${percent(rate)}`));
    }));
    const sorted = answers.slice(-RECENT).map(answer => answer.ms).sort((a, b) => a - b);
    $('latency-text').textContent = `bin closed → answer: median ${milliseconds(quantile(sorted, .5))}, ` +
      `95 % within ${milliseconds(quantile(sorted, .95))}`;
  }
}
