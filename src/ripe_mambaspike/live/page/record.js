// Recording: start, stop, trim, label, save; the recordings by class; training on them.
import { ink } from '/charts.js';

const $ = id => document.getElementById(id);
const GAP = 10, SURE_SECONDS = 3;  // the shortest that is kept, in thousandths; how long a second click deletes
const count = value => value.toLocaleString('en');
const clock = seconds => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, '0')}`;

function button(text, title, action) {
  const made = document.createElement('button');
  made.type = 'button';
  made.textContent = text;
  made.title = title;
  made.addEventListener('click', () => action(made));
  return made;
}

/** A canvas of as many pixels as the screen shows, cleared. */
function sheet(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.imageSmoothingEnabled = false;
  return { pen, width, height };
}

/** What never arrived, or was left out, as a sentence. */
function lostParts({ dropped, missing }) {
  const parts = Object.entries(missing).map(([what, number]) => `${count(number)} ${what}`);
  if (dropped) parts.push(`${count(dropped)} events dropped (their times fit no others)`);
  return parts.length ? `Missing: ${parts.join(', ')}.` : '';
}

export class Studio {
  constructor(send, colours) {
    this.send = send;
    this.colours = colours;
    this.record = null;
    this.phase = 'idle';
    this.clip = null;
    this.classes = [];
    this.training = { phase: 'idle', losses: [] };
    this.waiting = null;
    $('record').addEventListener('click', () => this.toggle());
    $('save').addEventListener('click', () => this.save());
    $('discard').addEventListener('click', () => this.send('discard'));
    $('train').addEventListener('click', () => { this.warn(''); this.send('train'); });
    $('cancel').addEventListener('click', () => this.send('cancel'));
    $('clip-label').addEventListener('keydown', event => { if (event.key === 'Enter') this.save(); });
    for (const id of ['trim-start', 'trim-stop']) $(id).addEventListener('input', () => this.trim(id));
  }

  greet(record) {
    this.record = record;
    $('studio').hidden = $('record-key').hidden = !record;
    document.body.classList.toggle('records', Boolean(record));
    if (!record) return;
    $('train-part').hidden = !record.training;
    this.showClasses();
  }

  enable(connected) {
    this.connected = connected;
    const idle = !['preparing', 'training', 'loading'].includes(this.training.phase);
    $('record').disabled = !connected || this.phase === 'clip';
    for (const id of ['save', 'discard', 'cancel']) $(id).disabled = !connected;
    $('train').disabled = !connected || !idle || !this.record || this.classes.length < this.record.min_classes;
  }

  receive(message) {
    if (message.kind === 'recorder') this.showRecorder(message);
    else if (message.kind === 'classes') {
      this.classes = message.classes;
      this.showClasses();
      $('recorded').textContent = message.saved ? `saved as ${message.saved}` : '';
    } else this.showTraining(message);
    this.enable(this.connected);
  }

  warn(text) {
    $('record-notice').textContent = text;
    $('record-notice').hidden = !text;
  }

  /** Space records and stops while a live source is watched; Escape discards. Whether the key was one of these. */
  key(event, live) {
    const { key, target } = event;
    if (!this.record || !live || event.ctrlKey || event.metaKey || event.altKey) return false;
    if (key === 'Escape' && this.phase === 'clip') this.send('discard');
    else if (key === ' ' && !['SELECT', 'INPUT', 'BUTTON'].includes(target.tagName) && !$('record').disabled) this.toggle();
    else return false;
    event.preventDefault();
    return true;
  }

  toggle() {
    this.warn('');
    if (this.phase === 'recording') { this.send('stop'); return; }
    if (this.waiting) { clearInterval(this.waiting); this.waiting = null; this.showPhase(); return; }
    let left = Number($('countdown').value);
    if (!left) { this.begin(); return; }
    $('record').textContent = `Recording in ${left} …`;
    this.waiting = setInterval(() => {
      left -= 1;
      $('record').textContent = `Recording in ${left} …`;
      if (left > 0) return;
      clearInterval(this.waiting);
      this.waiting = null;
      this.begin();
    }, 1000);
  }

  begin() {
    const length = Number($('length').value);
    this.showPhase();
    this.send('record', length || undefined);
  }

  showPhase() {
    $('record').textContent = this.phase === 'recording' ? 'Stop' : 'Record';
    $('record').classList.toggle('on', this.phase === 'recording');
  }

  showRecorder(message) {
    const fresh = message.phase === 'clip' && this.phase !== 'clip';
    this.phase = message.phase;
    if (!this.waiting) this.showPhase();
    if (message.phase === 'recording') {
      const lost = lostParts(message);
      $('recorded').textContent = `${message.seconds.toFixed(1)} s, ${count(message.events)} events${lost ? `. ${lost}` : ''}`;
    } else if (message.phase === 'clip') $('recorded').textContent = '';
    this.clip = message.clip;
    $('clip').hidden = !this.clip;
    $('record-help').hidden = Boolean(this.clip);
    if (!this.clip) return;
    if (fresh) {
      $('trim-start').value = 0;
      $('trim-stop').value = 1000;
      this.warn('');
      $('clip-label').focus({ preventScroll: true });
      $('clip-label').select();
    }
    this.draw();
  }

  /** Handles stay in order; the one that moves gives way. */
  trim(moved) {
    const start = Number($('trim-start').value), stop = Number($('trim-stop').value);
    if (stop - start < GAP) {
      if (moved === 'trim-start') $('trim-start').value = Math.max(0, stop - GAP);
      else $('trim-stop').value = Math.min(1000, start + GAP);
    }
    this.draw();
  }

  bounds() {
    return [$('trim-start').value, $('trim-stop').value].map(value => Number(value) / 1000 * this.clip.seconds);
  }

  save() {
    const label = $('clip-label').value.trim();
    if (!this.clip) return;
    if (!label) { this.warn('Give the clip a label first.'); $('clip-label').focus(); return; }
    const [start, stop] = this.bounds(), whole = Number($('trim-stop').value) === 1000;
    this.warn('');
    this.send('save', { label, start, stop: whole ? this.clip.seconds + 1e-3 : stop });
    if (document.activeElement) document.activeElement.blur();  // so that Space records the next one
  }

  draw() {
    if (this.clip) { this.drawFilm(); this.drawRate(); this.describeClip(); }
    this.drawLosses();
  }

  describeClip() {
    const [start, stop] = this.bounds(), { clip } = this, bins = clip.rates.length;
    const width = clip.seconds / bins;
    const kept = clip.rates.reduce((sum, rate, index) =>
      sum + rate * Math.max(0, Math.min(stop, (index + 1) * width) - Math.max(start, index * width)), 0);
    const texts = [`Kept: ${start.toFixed(2)}–${stop.toFixed(2)} s of ${clip.seconds.toFixed(2)} s, about ${count(Math.round(kept))} of ` +
      `${count(clip.events)} events.`, lostParts(clip), clip.ended ? `It ended since ${clip.ended}.` : ''];
    $('clip-text').textContent = texts.filter(Boolean).join(' ');
  }

  /** Pale what is cut off, and mark the two ends. */
  veil({ pen, width, height }) {
    const [left, right] = ['trim-start', 'trim-stop'].map(id => Number($(id).value) / 1000 * width);
    pen.globalAlpha = .72;
    pen.fillStyle = ink('--card');
    pen.fillRect(0, 0, left, height);
    pen.fillRect(right, 0, width - right, height);
    pen.globalAlpha = 1;
    pen.fillStyle = ink('--accent');
    pen.fillRect(Math.max(0, left - 1), 0, 2, height);
    pen.fillRect(Math.min(width - 2, right - 1), 0, 2, height);
  }

  drawFilm() {
    const paper = sheet($('film')), { film, width, height } = this.clip;
    const share = paper.width / film.length, scale = Math.min(share / width, paper.height / height);
    film.forEach((data, index) => {
      const shades = atob(data), picture = document.createElement('canvas');
      picture.width = width;
      picture.height = height;
      const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);
      for (let at = 0; at < pixels.length; at++) pixels[at] = this.colours[shades.charCodeAt(at)];
      picture.getContext('2d').putImageData(image, 0, 0);
      const across = width * scale, down = height * scale;
      paper.pen.drawImage(picture, index * share + (share - across) / 2, (paper.height - down) / 2, across, down);
    });
    this.veil(paper);
  }

  drawRate() {
    const paper = sheet($('clip-rate')), { pen, width, height } = paper, { rates } = this.clip;
    const most = Math.max(...rates, 1), step = width / rates.length;
    pen.fillStyle = ink('--c0');
    rates.forEach((rate, index) => {
      const tall = (height - 16) * rate / most;
      pen.fillRect(index * step, height - tall, Math.max(1, step - 1), tall);
    });
    this.veil(paper);
    pen.fillStyle = ink('--grey');
    pen.font = '11px system-ui, sans-serif';
    pen.fillText(`${count(most)} events/s at most`, 6, 12);
  }

  showClasses() {
    if (!this.record) return;
    const total = this.classes.reduce((sum, one) => sum + one.count, 0);
    $('saved-text').textContent = total ? `${count(total)} in ${this.record.folder}. Click a number to delete it.`
      : `None yet in ${this.record.folder}.`;
    $('labels').replaceChildren(...this.classes.map(one => new Option(one.label)));
    $('chips').replaceChildren(...this.classes.map(one => button(one.label, `Label it ${one.label}`, () => {
      $('clip-label').value = one.label;
      this.save();
    })));
    $('classes').replaceChildren(...this.classes.map(one => {
      const row = document.createElement('tr'), [label, number, saved] = [0, 1, 2].map(() => row.insertCell());
      label.textContent = one.label;
      number.textContent = count(one.count);
      const chips = document.createElement('div');
      chips.className = 'chips';
      chips.append(...one.saved.map(name => button(name.replace(/\..*/, ''), `Delete ${one.label}/${name}`,
        made => this.remove(made, one.label, name))));
      saved.append(chips);
      return row;
    }));
  }

  /** Delete at the second click. */
  remove(made, label, name) {
    if (made.classList.contains('sure')) { this.send('delete', { label, name }); return; }
    const text = made.textContent;
    made.classList.add('sure');
    made.textContent = `delete ${text}?`;
    setTimeout(() => { made.classList.remove('sure'); made.textContent = text; }, 1000 * SURE_SECONDS);
  }

  showTraining(message) {
    this.training = message;
    const { phase } = message, active = ['preparing', 'training', 'loading'].includes(phase);
    $('cancel').hidden = !active;
    const bar = $('train-bar');
    bar.hidden = !active;
    if (phase === 'training') bar.value = message.epochs ? message.epoch / message.epochs : 0;
    else bar.removeAttribute('value');
    const spent = clock(message.seconds);
    const progress = `Epoch ${message.epoch} of ${message.epochs}, loss ${message.loss === null ? '–' : message.loss.toFixed(3)}, ` +
      `${message.accuracy === null ? '–' : (100 * message.accuracy).toFixed(0)} % right; ${spent} so far`;
    $('train-text').textContent = {
      idle: 'A shipped network is fine-tuned on the recordings (recipe few). Two classes are the least; five or more clips of each are better.',
      preparing: `Reading the recordings and preparing the network … ${spent}`,
      training: `${progress}, ${message.left === null ? '' : `about ${clock(message.left)} left`}.`,
      loading: 'Trained. Loading the new network …',
      done: `Done in ${spent}: the new network answers now. It is saved in ${message.run}.`,
      failed: message.error,
      canceled: 'Canceled; nothing was kept of it.',
    }[phase];
    $('train-text').className = phase === 'failed' ? 'bad' : phase === 'done' ? 'good' : 'dim';
    this.drawLosses();
  }

  drawLosses() {
    const { losses } = this.training;
    $('losses').hidden = losses.length < 2;
    if (losses.length < 2) return;
    const { pen, width, height } = sheet($('losses')), most = Math.max(...losses), least = Math.min(...losses, 0);
    const last = Math.max(this.training.epochs, losses.length) - 1;
    pen.strokeStyle = ink('--accent');
    pen.lineWidth = 1.8;
    pen.lineJoin = 'round';
    pen.beginPath();
    losses.forEach((loss, index) => {
      const x = 4 + (width - 8) * index / last, y = 5 + (height - 10) * (1 - (loss - least) / Math.max(most - least, 1e-9));
      if (index) pen.lineTo(x, y); else pen.moveTo(x, y);
    });
    pen.stroke();
    pen.fillStyle = ink('--grey');
    pen.font = '11px system-ui, sans-serif';
    pen.textAlign = 'right';
    pen.fillText('loss', width - 6, 13);
  }
}
