// The tracks over time: memory by tier, bandwidth, waits. All share the view's times.

const LEFT = 84, RIGHT = 12;  // of the tracks, in pixels
const TRACKS = [
  {name: 'memory', top: 22, height: 170},
  {name: 'bandwidth', top: 222, height: 110},
  {name: 'waits', top: 362, height: 46},
  {name: 'blocks', top: 438, height: 360},
];
/// The page's colors of text and lines, light or dark.
const ink = {};
function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['ink', 'soft', 'grid', 'edge', 'paper', 'budget'])
    ink[name] = style.getPropertyValue('--' + name).trim();
  ink.faded = 'rgb(' + faded(WAIT_COLOR, ink.paper, 0.35) + ')';
  setPalette(ink.paper);
}

const TIERS = [['resident', 'on the device (with what is cached)', WHERE_COLORS[0]],
               ['host', 'in host memory', WHERE_COLORS[2]],
               ['nvme', 'on NVMe', WHERE_COLORS[3]],
               ['dropped', 'to be made again', WHERE_COLORS[DROPPED]]];
const WAIT_COLOR = WHERE_COLORS[FAULTING];
const FLOWS = [['out', 'out to the host', '#e08a1e'], ['in', 'in from the host', '#3f8f5b'],
               ['written', 'written to SSDs', '#8f6bb3'], ['read', 'read from SSDs', '#cf3f52']];

/// What is shown: ticks [from, to), place units [low, high).
const view = {from: 0, to: 1, low: 0, high: 1};

function wholeView(device) {
  Object.assign(view, {from: 0, to: device.ends, low: 0, high: device.places});
}

/// A time in seconds, as precise as a stretch that long needs.
function exactly(tick, span) {
  const digits = Math.max(0, 3 - Math.floor(Math.log10(secondsOf(span) * 1.01)));
  return secondsOf(tick).toFixed(Math.min(9, digits));
}

/// A time, as precise as what is shown.
const timeText = tick => exactly(tick, view.to - view.from) + ' s';

function niceStep(span, most) {
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5].map(each => each * power).find(each => each >= rough) || 10 * power;
}

/// Steps for bytes: 1, 2, 4, ... of a binary unit.
function byteStep(span, most) {
  let step = 1;
  while (span / step > most) step *= 2;
  return step;
}

/// A step between times so that their words do not meet, and the digits that tell them apart.
function timeSteps(pen, span, width) {
  for (let most = 10; ; --most) {
    const step = niceStep(span, most);
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    const wide = pen.measureText(secondsOf(view.to).toFixed(digits) + ' s').width + 12;
    if (most === 1 || step / span * width >= wide) return {step, digits};
  }
}

function drawTimes(pen, width, bottom) {
  const from = secondsOf(view.from), to = secondsOf(view.to);
  const {step, digits} = timeSteps(pen, to - from, width);
  pen.fillStyle = ink.soft;
  pen.strokeStyle = ink.grid;
  pen.textAlign = 'center';
  pen.beginPath();
  let written = 0;  // up to there
  for (let i = Math.ceil(from / step); i * step <= to; ++i) {
    const x = Math.round(LEFT + (i * step - from) / (to - from) * width) + 0.5;
    pen.moveTo(x, TRACKS[0].top);
    pen.lineTo(x, bottom);
    const text = (i * step).toFixed(digits) + ' s', half = pen.measureText(text).width / 2;
    const middle = Math.min(x, LEFT + width + RIGHT - half);  // within the canvas
    if (middle - half < written + 8) continue;
    pen.fillText(text, middle, bottom + 15);
    written = middle + half;
  }
  pen.stroke();
}

/// Where there is no room beside the title, below the picture.
function addToLegend(title, entries) {
  const box = document.getElementById('legend');
  box.append(element('b', {}, title), ...entries.map(([text, color]) => {
    const mark = element('i', {});
    mark.style.background = color;
    return element('span', {}, mark, text);
  }));
  box.classList.add('shown');
}

function drawFrame(pen, track, width, title, legend) {
  pen.textAlign = 'left';
  pen.fillStyle = ink.ink;
  pen.font = '600 12px system-ui, "DejaVu Sans", sans-serif';
  pen.fillText(title, LEFT, track.top - 7);
  let x = LEFT + pen.measureText(title).width + 18;
  pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
  const whole = legend.reduce((sum, [text]) => sum + pen.measureText(text).width + 32, x - 17);
  if (whole > LEFT + width) addToLegend(title, legend);
  else for (const [text, color] of legend) {
    pen.fillStyle = color;
    pen.fillRect(x, track.top - 16, 11, 11);
    pen.fillStyle = ink.soft;
    pen.fillText(text, x + 15, track.top - 7);
    x += pen.measureText(text).width + 32;
  }
  pen.strokeStyle = ink.edge;
  pen.strokeRect(LEFT - 0.5, track.top - 0.5, width + 1, track.height + 1);
}

function drawScale(pen, track, width, top, text) {
  const step = byteStep(top, 4);
  pen.textAlign = 'right';
  pen.strokeStyle = ink.grid;
  pen.fillStyle = ink.soft;
  for (let value = 0; value <= top * 1.0001; value += step) {
    const y = Math.round(track.top + track.height * (1 - value / top)) + 0.5;
    pen.beginPath();
    pen.moveTo(LEFT, y);
    pen.lineTo(LEFT + width, y);
    pen.stroke();
    pen.fillText(text(value), LEFT - 6, y + 4);
  }
}

/// For each pixel the most that a column of samples was; where a pixel has no sample, as before it;
/// before the first: NaN, which no line is drawn to.
function mostPerPixel(sample, column, width) {
  const out = new Float64Array(width), values = sample[column];
  const span = (view.to - view.from) / width;
  let i = firstAt(sample.at, view.from);
  let last = i > 0 ? values[i - 1] : NaN;
  for (let x = 0; x < width; ++x) {
    let most = -1;
    for (const end = view.from + (x + 1) * span; i < sample.count && sample.at[i] < end; ++i) {
      last = values[i];
      most = Math.max(most, last);
    }
    out[x] = most < 0 ? last : most;
  }
  return out;
}

/// The sample that [from, to) is drawn by: the one with most of it away, of one moment, so that its
/// tiers add up; where there is none, the last before it; -1: none yet.
function sampleOf(sample, from, to) {
  const first = firstAt(sample.at, from);
  const away = at => sample.host[at] + sample.nvme[at] + sample.dropped[at];
  let best = first - 1;
  for (let i = first; i < sample.count && sample.at[i] < to; ++i)
    if (best < first || away(i) > away(best)) best = i;
  return best;
}

function tiersPerPixel(sample, width) {
  const out = TIERS.map(() => new Float64Array(width)), span = (view.to - view.from) / width;
  for (let x = 0; x < width; ++x) {
    const shown = sampleOf(sample, view.from + x * span, view.from + (x + 1) * span);
    if (shown < 0) continue;
    TIERS.forEach(([column], tier) => { out[tier][x] = sample[column][shown]; });
  }
  return out;
}

function drawMemory(pen, device, track, width) {
  const {sample} = device;
  const tiers = tiersPerPixel(sample, width);
  const allocated = mostPerPixel(sample, 'allocated', width);
  const budget = mostPerPixel(sample, 'budget', width);
  let top = 1;
  for (let x = 0; x < width; ++x)
    top = Math.max(top, tiers[0][x] + tiers[1][x] + tiers[2][x], allocated[x] || 0,
                   budget[x] || 0);
  top *= 1.04;
  drawScale(pen, track, width, top, bytesText);
  const y = value => track.top + track.height * (1 - value / top);
  const base = new Float64Array(width);
  tiers.forEach((tier, index) => {
    pen.fillStyle = TIERS[index][2];
    for (let x = 0; x < width; ++x) {
      if (!tier[x]) continue;
      pen.fillRect(LEFT + x, y(base[x] + tier[x]), 1, track.height * tier[x] / top);
      base[x] += tier[x];
    }
  });
  line(pen, allocated, y, ink.ink, []);
  pen.lineWidth = 2;
  line(pen, budget, y, ink.budget, [6, 4]);
  pen.lineWidth = 1;
  drawFrame(pen, track, width, 'Memory', [...TIERS.map(([, text, color]) => [text, color]),
    ['allocated (line)', ink.ink], ['budget (dashed)', ink.budget]]);
}

function line(pen, values, y, color, dash) {
  pen.strokeStyle = color;
  pen.setLineDash(dash);
  pen.beginPath();
  for (let x = 0; x < values.length; ++x) pen.lineTo(LEFT + x + 0.5, y(values[x]));
  pen.stroke();
  pen.setLineDash([]);
}

/// Where a column that counts up was at a time, on a straight line from sample to sample.
function countAt(sample, column, tick) {
  const i = firstAt(sample.at, tick), values = sample[column];
  if (i === 0) return values[0] || 0;
  if (i >= sample.count) return values[sample.count - 1];
  const part = (tick - sample.at[i - 1]) / (sample.at[i] - sample.at[i - 1]);
  return values[i - 1] + part * (values[i] - values[i - 1]);
}

/// Bytes per second of such a column in [from, to).
function rateOf(sample, column, from, to) {
  const bytes = countAt(sample, column, to) - countAt(sample, column, from);
  return Math.max(0, bytes) / secondsOf(to - from);
}

function ratePerPixel(sample, column, width) {
  const span = (view.to - view.from) / width;
  return Float64Array.from({length: width}, (_, x) =>
    rateOf(sample, column, view.from + x * span, view.from + (x + 1) * span));
}

function drawBandwidth(pen, device, track, width) {
  const rates = FLOWS.map(([column]) => ratePerPixel(device.sample, column, width));
  let top = 1;
  for (const rate of rates) for (const value of rate) top = Math.max(top, value);
  top *= 1.05;
  drawScale(pen, track, width, top, value => bytesText(value) + '/s');
  const y = value => track.top + track.height * (1 - value / top);
  rates.forEach((rate, index) => line(pen, rate, y, FLOWS[index][2], []));
  drawFrame(pen, track, width, 'Bandwidth', FLOWS.map(([, text, color]) => [text, color]));
}

/// How much of each pixel's time somebody waited, and of that what is searched for.
function waitsPerPixel(device, width) {
  const {stall} = device, all = new Float64Array(width), strong = new Float64Array(width);
  const scale = width / (view.to - view.from);
  for (let i = 0; i < stall.count; ++i) {
    const end = (stall.end[i] - view.from) * scale;
    const begin = end - stall.ns[i] / about.tick_ns * scale;
    if (end < 0 || begin >= width) continue;
    for (let x = Math.max(0, Math.floor(begin)); x <= Math.min(end, width - 1); ++x) {
      const part = Math.min(end, x + 1) - Math.max(begin, x);
      if (part === 0 && begin < end) continue;  // ends where the pixel begins
      all[x] += Math.max(part, Number.MIN_VALUE);
      if (!search.stalls || search.stalls[i]) strong[x] += Math.max(part, Number.MIN_VALUE);
    }
  }
  return {all, strong};
}

function drawWaits(pen, device, track, width) {
  const {all, strong} = waitsPerPixel(device, width);
  for (const [values, color] of [[all, ink.faded], [strong, WAIT_COLOR]]) {
    pen.fillStyle = color;
    for (let x = 0; x < width; ++x) {
      if (values[x] === 0) continue;
      const height = Math.max(1, track.height * Math.min(1, values[x]));  // the shortest is seen
      pen.fillRect(LEFT + x, track.top + track.height - height, 1, height);
    }
  }
  pen.textAlign = 'right';
  pen.fillStyle = ink.soft;
  pen.fillText('100 %', LEFT - 6, track.top + 10);
  pen.fillText('0 %', LEFT - 6, track.top + track.height);
  drawFrame(pen, track, width, 'Waits for memory', [['part of the time', WAIT_COLOR]]);
}
