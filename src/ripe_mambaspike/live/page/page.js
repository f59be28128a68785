// The page: the connection, the controls, and when what is drawn.
import { Panel } from '/panel.js';
import { Studio } from '/record.js';
import { Screen, readFrame } from '/screen.js';

const $ = id => document.getElementById(id);
const screen = new Screen($('events'), $('attention')), panel = new Panel();
const state = {
  socket: null, opened: null, paused: false, position: 0, round: 0, frame: null, arrivals: [], hello: null, wait: 500, fresh: false,
  uploads: 0, busy: false, sliding: false, lost: false, sent: 0,
};

const studio = new Studio(sendCommand, screen.colours);

// The connection.
function connect() {
  const address = new URL('/watch', location.href);
  address.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
  const socket = state.socket = new WebSocket(address);
  socket.binaryType = 'arraybuffer';
  socket.addEventListener('open', () => { link('connected', 'good'); });
  socket.addEventListener('message', ({ data }) => typeof data === 'string' ? receive(JSON.parse(data)) : receiveFrame(data));
  socket.addEventListener('close', () => {
    link('connection lost, trying again', 'bad');
    state.lost = state.lost || Boolean(state.opened);
    enable(false);
    setTimeout(connect, state.wait);
    state.wait = Math.min(10000, 2 * state.wait);
  });
}

function sendCommand(command, value) {
  if (state.socket.readyState !== WebSocket.OPEN) return;
  state.sent += 1;
  state.socket.send(JSON.stringify(value === undefined ? { do: command } : { do: command, value }));
}

function receive(message) {
  switch (message.kind) {
    case 'hello': return greet(message);
    case 'opening':
      close();
      return notice('Reading the recording …', true);
    case 'opened': return open(message);
    case 'predictions':
      if (message.round < state.round) return undefined;
      panel.add(message.predictions);
      state.fresh = true;
      return undefined;
    case 'status': return status(message);
    case 'error':
      studio.warn(message.message);
      return notice(message.message);
    case 'network': return changeNetwork(message.network);
    case 'recorder': case 'classes': case 'training': return studio.receive(message);
  }
  return undefined;
}

function receiveFrame(buffer) {
  const frame = readFrame(buffer);
  if (!state.opened || frame.round < state.round) return;
  if (state.opened.live) screen.shape(frame.width, frame.height);
  state.frame = frame;
  state.position = frame.position;
  state.fresh = true;
  const now = performance.now();
  state.arrivals = [...state.arrivals.filter(arrival => now - arrival < 2000), now];
  $('skipped').textContent = frame.skipped.toLocaleString('en');
  $('rate').textContent = `${Math.round(frame.events / frame.span).toLocaleString('en')} /s`;
}

// Messages of the server.
function greet(hello) {
  state.hello = hello;
  state.sent = 0;
  state.wait = 500;
  describe(hello.network);
  screen.setPalette(hello.palette);
  studio.greet(hello.record);
  const list = $('recordings'), own = [...list.querySelectorAll('option[data-upload]')];
  const first = new Option(hello.recordings.length ? 'choose a recording …' : 'none listed: upload one', '');
  list.replaceChildren(first, ...hello.recordings.map((one, number) => new Option(one.name, String(number))), ...own);
  $('live').hidden = !hello.live;
  if (hello.live) $('live').textContent = `Watch ${hello.live}`;
  enable(true);
  if (state.lost && !hello.record) notice('The connection was lost for a moment; choose again what to watch.', true);
  state.opened = null;
  state.lost = false;
  if ($('overlay').checked) sendCommand('attention', true);
  if (hello.record) sendCommand('live');
}

function describe({ name, classes, time_steps: steps, grid, window, hop, causal }) {
  panel.classes = classes;
  $('network').textContent = `${name}: ${classes.length} classes, ${steps} steps of ${grid[1]}×${grid[0]}, ` +
    (causal ? 'a prediction' : `windows of ${+window.toFixed(3)} s`) + ` every ${+hop.toFixed(3)} s`;
}

/** The server has another network, with classes of its own. A live source goes on; what was played is closed. */
function changeNetwork(network) {
  const playing = state.opened && !state.opened.live;
  close();
  describe(network);
  if (playing) notice('The server has a new network; choose again what to watch.', true);
}

function close() {
  state.opened = state.frame = null;
  state.position = 0;
  state.arrivals = [];
  panel.clear();
  panel.show(0);
  screen.clear();
  for (const id of ['fps', 'skipped', 'rate', 'lag', 'dropped', 'viewers', 'time']) $(id).textContent = '–';
  $('facts').textContent = '';
  $('empty').hidden = false;
  enable(true);
}

function open(message) {
  close();
  state.opened = message;
  state.round = message.round;
  panel.live = message.live;
  panel.seconds = message.seconds || 0;
  screen.shape(message.width, message.height);
  $('empty').hidden = true;
  const facts = [`${message.name}: ${message.width}×${message.height} pixels`];
  if (!message.live) {
    facts.push(`${message.events.toLocaleString('en')} events`, `${message.seconds.toFixed(2)} s`, message.format);
  }
  $('facts').textContent = [facts.join(', '), ...(message.warnings || [])].join('; ');
  notice('');
  enable(true);
  setPaused(false);
  state.fresh = true;
}

function status(message) {
  if (!state.opened) return;
  if (message.received === state.sent) {  // otherwise it was sent before the last command
    setPaused(message.paused);
    state.position = message.position;
  }
  $('lag').textContent = message.lag === undefined ? '–' : message.lag ? `${message.lag.toFixed(2)} s` : '0 s';
  $('dropped').textContent = message.dropped === undefined ? '0' : message.dropped.toLocaleString('en');
  $('viewers').textContent = message.viewers === 1 ? '1 viewer' : `${message.viewers} viewers`;
  if (message.problem !== state.problem) notice(message.problem || '', true);
  state.problem = message.problem;
  state.fresh = true;
}

function notice(text, mild = false) {
  $('notice').textContent = text;
  $('notice').hidden = !text;
  $('notice').classList.toggle('mild', mild);
}

function link(text, kind) {
  $('link').textContent = text;
  $('link').className = `pill ${kind}`;
}

function enable(connected) {
  const playing = connected && state.opened && !state.opened.live;
  for (const id of ['play', 'restart', 'position', 'speed', 'loop']) $(id).disabled = !playing;
  $('recordings').disabled = !connected;
  $('upload').disabled = !connected || state.busy;
  $('live').disabled = !connected;
  document.body.classList.toggle('live', Boolean(state.opened && state.opened.live));
  studio.enable(connected);
}

function setPaused(paused) {
  state.paused = paused;
  $('play').textContent = paused ? 'Play' : 'Pause';
}

// Commands of the viewer.
function choose() {
  const option = $('recordings').selectedOptions[0];
  if (!option || option.value === '') return;
  if (option.dataset.upload) sendCommand('upload', option.dataset.upload);
  else sendCommand('play', Number(option.value));
}

function send(file) {
  if (!file || state.busy || !state.hello) return;
  if (file.size > state.hello.upload_bytes) {
    const most = state.hello.upload_bytes / 2 ** 20;
    notice(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MB; at most ${+most.toFixed(1)} MB are taken.`);
    return;
  }
  const request = new XMLHttpRequest(), bar = $('progress');
  state.busy = true;
  bar.hidden = false;
  bar.value = 0;
  enable(true);
  notice(`Sending ${file.name} …`, true);
  request.upload.addEventListener('progress', ({ loaded, total }) => {
    bar.value = total ? loaded / total : 0;
    if (loaded === total) notice(`Reading ${file.name} …`, true);
  });
  request.addEventListener('loadend', () => {
    state.busy = false;
    bar.hidden = true;
    enable(true);
    let said = null;
    try { said = JSON.parse(request.responseText); } catch { /* said below */ }
    if (request.status === 200 && said) {
      const option = new Option(`uploaded: ${said.name}`, `upload ${++state.uploads}`);
      option.dataset.upload = said.upload;
      $('recordings').append(option);
      option.selected = true;
      choose();
    } else {
      notice(said && said.error ? said.error : `${file.name} was not taken: the connection broke off or the server refused it.`);
    }
  });
  request.open('POST', `/upload?name=${encodeURIComponent(file.name)}`);
  request.setRequestHeader('content-type', 'application/octet-stream');
  request.send(file);
}

$('recordings').addEventListener('change', choose);
$('upload').addEventListener('click', () => $('file').click());
$('file').addEventListener('change', () => { send($('file').files[0]); $('file').value = ''; });
$('live').addEventListener('click', () => { $('recordings').value = ''; sendCommand('live'); });
$('play').addEventListener('click', () => { sendCommand(state.paused ? 'resume' : 'pause'); setPaused(!state.paused); });
$('restart').addEventListener('click', () => { sendCommand('seek', 0); if (state.paused) sendCommand('resume'); });
$('speed').addEventListener('change', () => sendCommand('speed', Number($('speed').value)));
$('loop').addEventListener('change', () => sendCommand('loop', $('loop').checked));
$('overlay').addEventListener('change', () => { sendCommand('attention', $('overlay').checked); state.fresh = true; });

// A slider speaks with every pixel; the server is asked ten times a second at most.
let sought = 0, waiting = null;
function seek(share) {
  clearTimeout(waiting);
  const left = sought + 100 - performance.now();
  waiting = setTimeout(() => { sought = performance.now(); sendCommand('seek', share); state.sliding = false; }, Math.max(0, left));
}
$('position').addEventListener('input', () => { state.sliding = true; seek(Number($('position').value) / 1000); });

document.addEventListener('keydown', event => {
  const { key, target } = event;
  if (studio.key(event, Boolean(state.opened && state.opened.live))) return;
  if (event.ctrlKey || event.metaKey || event.altKey || !state.opened || state.opened.live) return;
  if (['SELECT', 'INPUT'].includes(target.tagName) && (key !== ' ' || target.type !== 'range')) return;
  if (key === ' ' && target.tagName !== 'BUTTON') $('play').click();
  else if (key === 'ArrowLeft' || key === 'ArrowRight') {
    const share = state.position / state.opened.seconds + (key === 'ArrowLeft' ? -.05 : .05);
    seek(Math.min(1, Math.max(0, share)));
  } else if (key === 'r' || key === 'R') $('restart').click();
  else if (key === 'a' || key === 'A') $('overlay').click();
  else return;
  event.preventDefault();
});

const area = $('screen');
for (const kind of ['dragover', 'drop']) document.addEventListener(kind, event => event.preventDefault());
document.addEventListener('dragover', () => area.classList.add('over'));
for (const kind of ['dragleave', 'drop']) document.addEventListener(kind, () => area.classList.remove('over'));
document.addEventListener('drop', event => send(event.dataTransfer.files[0]));

// Drawing: once a frame of the screen, and only when there is something new.
function draw() {
  requestAnimationFrame(draw);
  if (!state.fresh) return;
  state.fresh = false;
  if (state.frame) { screen.draw(state.frame); state.frame = null; }
  if (!state.opened) return;
  const attention = panel.show(state.opened.live ? panel.newest() : state.position);
  const over = $('overlay').checked ? attention : null, reach = over ? panel.reach() : 0;
  screen.drawAttention(over, reach);
  $('reach').textContent = over ? `, full colour at ${reach.toPrecision(2)}` : '';
  const { arrivals } = state, spread = arrivals[arrivals.length - 1] - arrivals[0];
  $('fps').textContent = arrivals.length > 1 && !state.paused ? `${(1000 * (arrivals.length - 1) / spread).toFixed(0)} /s` : '–';
  const seconds = state.opened.seconds;
  $('time').textContent = seconds ? `${state.position.toFixed(2)} / ${seconds.toFixed(2)} s` : `${state.position.toFixed(1)} s`;
  if (seconds && !state.sliding) $('position').value = 1000 * state.position / seconds;
}

addEventListener('resize', () => { state.fresh = true; studio.draw(); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { panel.shown = undefined; state.fresh = true; studio.draw(); });
connect();
requestAnimationFrame(draw);
