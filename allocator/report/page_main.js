// What the user does: zooms, moves, hovers, searches. The view is part of the page's address
// (#t=FROM-TO in seconds, y=LOW-HIGH, find=WORDS, device=N), so that it can be passed on.

const canvas = document.getElementById('canvas'), tip = document.getElementById('tip');
const input = document.getElementById('find');
let devices = [], device = null, due = false;

function trackWidth() { return Math.max(50, Math.floor(canvas.clientWidth - LEFT - RIGHT)); }

function draw() {
  due = false;
  const begun = performance.now(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  const pen = canvas.getContext('2d'), width = trackWidth();
  readInk();
  document.getElementById('legend').classList.remove('shown');
  fill('legend');
  pen.scale(ratio, ratio);
  pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
  const [memory, bandwidth, waits, blocks] = TRACKS;
  drawTimes(pen, width, blocks.top + blocks.height);
  drawMemory(pen, device, memory, width);
  drawBandwidth(pen, device, bandwidth, width);
  drawWaits(pen, device, waits, width);
  drawBlocks(pen, device, blocks, width, ratio);
  showTip();
  document.getElementById('range').textContent =
    'from ' + exactly(view.from, view.to - view.from) + ' s on, ' +
    secondsText(secondsOf(view.to - view.from)) + ' long';
  document.documentElement.dataset.drawMs = (performance.now() - begun).toFixed(1);
}

function redraw() {
  if (!due) requestAnimationFrame(draw);
  due = true;
  clearTimeout(redraw.later);
  redraw.later = setTimeout(tellAddress, 300);
}

function tellAddress() {
  const words = [];
  if (view.from > 0 || view.to < device.ends)
    words.push('t=' + secondsOf(view.from).toFixed(9) + '-' + secondsOf(view.to).toFixed(9));
  if (view.low > 0 || view.high < device.places)
    words.push('y=' + Math.floor(view.low) + '-' + Math.ceil(view.high));
  if (search.text) words.push('find=' + encodeURIComponent(search.text));
  if (devices.length > 1) words.push('device=' + device.number);
  try {
    history.replaceState(null, '', '#' + words.join('&'));
  } catch (refused) { /* some browsers do not let a file do that: the view is only not told */ }
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = '([0-9]+(?:[.][0-9]+)?)', form = new RegExp('^' + number + '-' + number + '$');
  const range = name => form.exec(words.get(name) || '');
  const times = range('t'), places = range('y'), wanted = words.get('device');
  if (!device || (wanted !== null && +wanted !== device.number)) show(wanted);
  else everything();
  if (times) setTimes(ticksOf(+times[1]), ticksOf(+times[2]));
  if (places) setPlaces(+places[1], +places[2]);
  searchFor(words.get('find') || '');
}

const TICKS_LEAST = 20, PLACES_LEAST = 4;  // of what is shown

function setTimes(from, to) {
  const span = Math.min(device.ends, Math.max(TICKS_LEAST, to - from));
  view.from = Math.min(Math.max(0, from), device.ends - span);
  view.to = view.from + span;
  redraw();
}

function setPlaces(low, high) {
  const span = Math.min(device.places, Math.max(PLACES_LEAST, high - low));
  view.low = Math.min(Math.max(0, low), device.places - span);
  view.high = view.low + span;
  redraw();
}

/// What is at x, or y, stays there, also where it goes no closer.
function zoom(factor, x) {
  const part = (x - LEFT) / trackWidth(), span = view.to - view.from, at = view.from + part * span;
  const wanted = Math.min(device.ends, Math.max(TICKS_LEAST, span * factor));
  setTimes(at - part * wanted, at + (1 - part) * wanted);
}

function zoomPlaces(factor, y) {
  const span = view.high - view.low, at = placeAt(y), part = (at - view.low) / span;
  const wanted = Math.min(device.places, Math.max(PLACES_LEAST, span * factor));
  setPlaces(at - part * wanted, at + (1 - part) * wanted);
}

function placeAt(y) {
  const track = TRACKS[3];
  return view.high - (y - track.top) / track.height * (view.high - view.low);
}

const inBlocks = y => y >= TRACKS[3].top && y <= TRACKS[3].top + TRACKS[3].height;

function showLife(of) {
  const {life} = device, span = Math.max(life.died[of] - life.born[of], 100);
  setTimes(life.born[of] - span * 0.1, life.died[of] + span * 0.1);
  const rows = life.rows[of];
  setPlaces(life.place[of] - rows * 6, life.place[of] + rows * 7);
}

function showWait(i) {
  const {stall} = device, ticks = Math.max(stall.ns[i] / about.tick_ns, 50);
  setTimes(stall.end[i] - ticks * 3, stall.end[i] + ticks * 2);
  if (stall.life[i] !== NONE) searchFor('#' + stall.life[i]);
  canvas.scrollIntoView({block: 'nearest'});
}

function searchFor(text) {
  input.value = text;
  find(device, text);
  document.getElementById('found').textContent = search.lives
    ? search.blocks.toLocaleString('en') + ' blocks, ' + search.waits.toLocaleString('en') +
      ' waits'
    : '';
  redraw();
}

function next() {
  if (!search.list.length) return;
  search.at = (search.at + 1) % search.list.length;
  const found = search.list[search.at];
  if (found.wait === undefined) showLife(found.life); else showWait(found.wait);
}

let mouse = null;  // where it rests on the canvas

function showTip() {
  const width = trackWidth();
  const text = mouse && mouse.x >= LEFT && mouse.x < LEFT + width ? textAt(mouse.x, mouse.y, width)
                                                                  : '';
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const right = mouse.x > canvas.clientWidth / 2;
  tip.style.left = right ? '' : mouse.x + 14 + 'px';
  tip.style.right = right ? canvas.clientWidth - mouse.x + 14 + 'px' : '';
  tip.style.top = Math.max(0, mouse.y - 20) + 'px';
}

/// What is drawn there, in words.
function textAt(x, y, width) {
  const ticks = (view.to - view.from) / width, from = view.from + (x - LEFT) * ticks;
  const [memory, bandwidth, waits, blocks] = TRACKS, {sample} = device;
  const inside = track => y >= track.top && y <= track.top + track.height;
  const at = timeText(from) + ': ';
  if (inside(memory)) {
    const i = sampleOf(sample, from, from + ticks);
    if (i < 0) return '';
    const tiers = TIERS.map(([column, name]) => bytesText(sample[column][i]) + ' ' + name);
    return at + tiers.join(', ') + '\nallocated ' + bytesText(sample.allocated[i]) + ', budget ' +
           bytesText(sample.budget[i]) + ', in flight ' + bytesText(sample.flight[i]);
  }
  if (inside(bandwidth))
    return at + FLOWS.map(([column, name]) =>
      bytesText(rateOf(sample, column, from, from + ticks)) + '/s ' + name).join(', ');
  if (inside(waits)) return waitText(from, ticks);
  if (!inBlocks(y)) return '';
  const found = stretchAt(device, Math.floor(x - LEFT), Math.floor(y - blocks.top), width,
                          blocks.height, 2);
  return found < 0 ? '' : stretchText(device, found);
}

/// The longest wait in a pixel, or beside it.
function waitText(from, ticks) {
  const {stall} = device;
  let best = -1;
  for (let i = 0; i < stall.count; ++i) {
    const begin = stall.end[i] - stall.ns[i] / about.tick_ns;
    if (begin < from + 2 * ticks && from - ticks <= stall.end[i] &&
        (best < 0 || stall.ns[i] > stall.ns[best])) best = i;
  }
  if (best < 0) return '';
  return operatorOf(stall, best) + ' waited ' + secondsText(stall.ns[best] / 1e9) + ' for ' +
         (stall.life[best] === NONE ? 'room' : 'block #' + stall.life[best] + ' (' +
          bytesText(device.life.bytes[stall.life[best]]) + ')') + '\n' + siteOf(stall, best);
}

function move(event, from) {
  const ticks = (event.offsetX - from.x) / trackWidth() * (from.to - from.from);
  setTimes(from.from - ticks, from.to - ticks);
  if (!inBlocks(from.y)) return;
  const rows = (event.offsetY - from.y) / TRACKS[3].height * (from.high - from.low);
  setPlaces(from.low + rows, from.high + rows);
}

function listenToPointer() {
  let from = null;
  canvas.addEventListener('wheel', event => {
    const delta = event.deltaY || event.deltaX, factor = Math.exp(delta * 0.0015);
    const places = event.shiftKey && inBlocks(event.offsetY);
    const whole = places ? view.high - view.low >= device.places
                         : view.to - view.from >= device.ends;
    if (whole && factor > 1 && !event.ctrlKey) return;  // no farther: the page scrolls
    event.preventDefault();
    if (places) zoomPlaces(factor, event.offsetY); else zoom(factor, event.offsetX);
  }, {passive: false});
  canvas.addEventListener('pointerdown', event => {
    if (event.button !== 0) return;
    from = {x: event.offsetX, y: event.offsetY, ...view};
    canvas.setPointerCapture(event.pointerId);
  });
  for (const end of ['pointerup', 'pointercancel', 'lostpointercapture'])
    canvas.addEventListener(end, () => { from = null; });
  canvas.addEventListener('pointermove', event => {
    mouse = {x: event.offsetX, y: event.offsetY};
    if (from) move(event, from); else showTip();
  });
  canvas.addEventListener('pointerleave', () => { mouse = null; showTip(); });
  canvas.addEventListener('dblclick', everything);
}

function listenToKeys() {
  const ours = event => !event.ctrlKey && !event.altKey && !event.metaKey;  // not the browser's
  canvas.addEventListener('keydown', event => {
    const span = view.to - view.from, rows = view.high - view.low;
    const middle = LEFT + trackWidth() / 2, centre = TRACKS[3].top + TRACKS[3].height / 2;
    const moves = {ArrowUp: () => setPlaces(view.low + rows / 5, view.high + rows / 5),
                   ArrowDown: () => setPlaces(view.low - rows / 5, view.high - rows / 5),
                   '>': () => zoomPlaces(0.7, centre), '<': () => zoomPlaces(1.4, centre),
                   Home: everything, Enter: next, Escape: () => searchFor(''),
                   ArrowLeft: () => setTimes(view.from - span / 5, view.to - span / 5),
                   ArrowRight: () => setTimes(view.from + span / 5, view.to + span / 5),
                   '+': () => zoom(0.7, middle), '=': () => zoom(0.7, middle),
                   '-': () => zoom(1.4, middle)};
    if (ours(event) && moves[event.key]) { event.preventDefault(); moves[event.key](); }
  });
  input.addEventListener('keydown', event => {
    if (event.key === 'Enter') next();
    if (event.key === 'Escape') { searchFor(''); canvas.focus(); }
  });
  document.addEventListener('keydown', event => {
    if (event.key !== '/' || !ours(event) || event.target === input) return;
    event.preventDefault();
    input.focus();
  });
}

function listen() {
  listenToPointer();
  listenToKeys();
  document.getElementById('all').addEventListener('click', everything);
  document.getElementById('next').addEventListener('click', next);
  input.addEventListener('input', () => searchFor(input.value));
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  window.addEventListener('resize', redraw);
  window.addEventListener('hashchange', readAddress);
}

function everything() {
  wholeView(device);
  redraw();
}

/// The device of that number, or the first.
function show(number) {
  device = devices.find(each => each.number === +number) || devices[0];
  document.getElementById('device').value = device.number;
  wholeView(device);
  searchFor(input.value);
  showFigures(device);
  fill('operators', waitTable(device.stall, operatorOf, 'operator'));
  fill('sites', waitTable(device.stall, siteOf, 'line', text => lineText(device, text)));
  document.getElementById('folder').textContent = device.folder && 'in ' + device.folder;
  showLongest(device);
  showPinned(device);
  showSaid(device);
  showBudgets(device);
  redraw();
}

function showHead() {
  const date = new Date(about.at * 1000);
  const when = about.at && !isNaN(date) ? date.toISOString().slice(0, 16).replace('T', ' ') : '';
  document.getElementById('command').textContent =
    [about.command, about.pid && 'process ' + about.pid, when && when + ' UTC',
     about.policy && 'policy ' + about.policy].filter(Boolean).join('  -  ');
  const notice = document.getElementById('notice');
  notice.hidden = about.ended && !about.cut;
  notice.textContent = 'The trace is incomplete: the process was killed or still runs, or the ' +
    'file was cut off. The page shows the events that were written by then' +
    (about.cut ? '; its last line was incomplete.' : '.');
}

async function main() {
  const begun = performance.now();
  showHead();
  const buffer = await readColumns();
  devices = about.devices.map(entry => readDevice(entry, buffer));
  devices.forEach(countUp);
  const choice = document.getElementById('device');
  choice.append(...devices.map(each => element('option', {value: each.number}, '' + each.number)));
  document.getElementById('which').hidden = devices.length < 2;
  choice.addEventListener('change', () => show(choice.value));
  listen();
  readAddress();
  draw();
  document.documentElement.dataset.readyMs = (performance.now() - begun).toFixed(0);
}

main().catch(error => {
  const notice = document.getElementById('notice');
  notice.hidden = false;
  notice.textContent = 'This page cannot be drawn: ' + error;
  document.documentElement.dataset.failed = String(error);
});
