// The lives of blocks: time to the right, addresses upwards (those that no block ever used left
// out). Drawn pixel by pixel, so that a million stretches are no more than a picture.

const search = {text: '', lives: null, stalls: null, list: [], at: -1};

/// A color as its three parts, as far as `part` away from the paper.
function faded(color, paper, part) {
  const parts = each => [1, 3, 5].map(at => parseInt(each.slice(at, at + 2), 16));
  const back = parts(paper);
  return parts(color).map((own, i) => Math.round(back[i] + (own - back[i]) * part));
}

/// Colors as the canvas has them (little-endian), whole and faded into the paper.
const PALETTE = new Uint32Array(2 * WHERE.length + 1);
function setPalette(paper) {
  const pack = list => 0xff000000 | list[2] << 16 | list[1] << 8 | list[0];
  PALETTE.fill(pack(faded(paper, paper, 1)));
  WHERE_COLORS.forEach((color, index) => {
    PALETTE[index + 1] = pack(faded(color, paper, 1));
    PALETTE[index + 1 + WHERE.length] = pack(faded(color, paper, 0.22));
  });
}

/// Of what shares a pixel, the highest is seen: what was searched for, of that what was waited for,
/// then what is farther away, then what is on its way. By code: 0 nothing, where + 1, and
/// WHERE.length more for what was not searched for.
const RANKS = [0, 1, 4, 5, 6, 7, 2, 3];  // by where
const SEEN = new Uint8Array(PALETTE.length);
WHERE.forEach((name, where) => {
  SEEN[where + 1] = 1 + WHERE.length + RANKS[where];
  SEEN[where + 1 + WHERE.length] = 1 + RANKS[where];
});

function codeOf(device, i) {
  const {stretch} = device, code = stretch.where[i] + 1;
  return search.lives && !search.lives[stretch.life[i]] ? code + WHERE.length : code;
}

/// The pixels of a stretch, [x0, x1) and [y0, y1), in `box`; false: none. A line is left free above
/// each block, and before each life, where they are large enough to be told apart.
const EDGE_LEAST = 5;
function boxOf(device, i, width, height, box) {
  const {life, stretch} = device;
  if (stretch.end[i] < view.from || stretch.begin[i] > view.to) return false;
  const of = stretch.life[i], low = life.place[of], high = low + life.rows[of];
  if (high <= view.low || low >= view.high) return false;
  const across = width / (view.to - view.from), down = height / (view.high - view.low);
  const x0 = Math.floor((stretch.begin[i] - view.from) * across);
  const x1 = Math.max(x0 + 1, Math.floor((stretch.end[i] - view.from) * across));
  const y0 = Math.floor(height - (high - view.low) * down);
  const y1 = Math.max(y0 + 1, Math.floor(height - (low - view.low) * down));
  const born = stretch.begin[i] === life.born[of] && x1 - x0 >= EDGE_LEAST;
  box.x0 = Math.max(0, born ? x0 + 1 : x0);
  box.x1 = Math.min(width, x1);
  box.y0 = Math.max(0, y1 - y0 >= EDGE_LEAST ? y0 + 1 : y0);
  box.y1 = Math.min(height, y1);
  return true;
}

/// One code for each pixel.
function blockCodes(device, width, height) {
  const codes = new Uint8Array(width * height), box = {x0: 0, x1: 0, y0: 0, y1: 0};
  for (let i = 0; i < device.stretch.count; ++i) {
    if (!boxOf(device, i, width, height, box)) continue;
    const code = codeOf(device, i), seen = SEEN[code];
    for (let y = box.y0; y < box.y1; ++y)
      for (let at = y * width + box.x0, end = y * width + box.x1; at < end; ++at)
        if (SEEN[codes[at]] <= seen) codes[at] = code;
  }
  return codes;
}

/// The stretch that is seen at a pixel, or at the nearest pixel beside it within `slack`; -1: none.
function stretchAt(device, x, y, width, height, slack) {
  const box = {x0: 0, x1: 0, y0: 0, y1: 0};
  let best = -1, nearest = slack, most = 0;
  for (let i = 0; i < device.stretch.count; ++i) {
    if (!boxOf(device, i, width, height, box) || y < box.y0 || y >= box.y1) continue;
    const distance = Math.max(box.x0 - x, x - (box.x1 - 1), 0);
    if (distance > nearest) continue;
    const seen = SEEN[codeOf(device, i)];
    if (distance === nearest && seen < most) continue;
    best = i;
    nearest = distance;
    most = seen;
  }
  return best;
}

function drawBlocks(pen, device, track, width, ratio) {
  const across = Math.max(1, Math.round(width * ratio));
  const down = Math.max(1, Math.round(track.height * ratio));
  const codes = blockCodes(device, across, down);
  const picture = new ImageData(across, down), pixels = new Uint32Array(picture.data.buffer);
  for (let i = 0; i < codes.length; ++i) pixels[i] = PALETTE[codes[i]];
  pen.putImageData(picture, Math.round(LEFT * ratio), Math.round(track.top * ratio));
  drawTouches(pen, device, track, width);
  drawFrame(pen, track, width, 'Blocks', WHERE.map((text, i) => [text, WHERE_COLORS[i]]));
  drawPlaces(pen, device, track);
}

/// Up to so many are drawn: more are a carpet.
const TOUCHES_MOST = 20000;
function drawTouches(pen, device, track, width) {
  const {touch, life} = device;
  const first = firstAt(touch.at, view.from), last = firstAt(touch.at, view.to);
  if (last - first > TOUCHES_MOST) return;
  const across = width / (view.to - view.from), down = track.height / (view.high - view.low);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, track.top, width, track.height);
  pen.clip();
  for (let i = first; i < last; ++i) {
    const of = touch.life[i], high = life.rows[of] * down;
    const bottom = track.top + track.height - (life.place[of] - view.low) * down;
    if (high < 3 || bottom < track.top || bottom - high > track.top + track.height) continue;
    pen.fillStyle = touch.write[i] ? '#1d2733' : '#ffffffb0';
    pen.globalAlpha = search.lives && !search.lives[of] ? 0.22 : 1;
    pen.fillRect(LEFT + Math.floor((touch.at[i] - view.from) * across), bottom - high + 0.5, 1,
                 high - 1);
  }
  pen.restore();
}

function drawPlaces(pen, device, track) {
  const span = (view.high - view.low) * device.unit, step = byteStep(span, 6);
  pen.textAlign = 'right';
  pen.fillStyle = ink.soft;
  for (let at = Math.ceil(view.low * device.unit / step) * step; at <= view.high * device.unit;
       at += step) {
    const y = track.top + track.height * (1 - (at / device.unit - view.low) /
                                              (view.high - view.low));
    pen.fillText(bytesText(at), LEFT - 6, y + 4);
  }
}

const SMALL = 1 << 20;
function lifeText(device, of) {
  const {life} = device;
  const lasts = life.died[of] < device.ends;
  const lines = ['block #' + of + ', ' + bytesText(life.bytes[of]) + ' at 0x' +
                 life.address[of].toString(16),
                 'lived from ' + timeText(life.born[of]) + ' to ' +
                 (lasts ? timeText(life.died[of]) : 'the end') + ', touched ' +
                 timesText(life.touches[of])];
  if (life.trips[of])
    lines.push('was away and came back ' + timesText(life.trips[of]) + ', waited for ' +
               secondsText(life.waited[of] / 1e9));
  if (life.bytes[of] < SMALL)
    lines.push('below 1 MiB: in a segment that stays on the device, uses not recorded');
  if (life.maker[of] !== NONE) lines.push('allocated by ' + about.words[life.maker[of]]);
  if (life.pin[of] !== NONE) lines.push('pinned: ' + about.words[life.pin[of]]);
  return lines.join('\n');
}

function stretchText(device, i) {
  const {stretch} = device;
  return WHERE[stretch.where[i]] + ' for ' +
         secondsText(secondsOf(stretch.end[i] - stretch.begin[i])) + ' (from ' +
         timeText(stretch.begin[i]) + ')\n' + lifeText(device, stretch.life[i]);
}

function parseSize(text) {
  const match = /^([0-9.]+)\s*([kmgt]?)(i?)b?$/i.exec(text);
  if (!match) return NaN;
  const power = 'kmgt'.indexOf(match[2].toLowerCase()) + 1;
  return parseFloat(match[1]) * (match[2] === '' ? 1 : match[3] ? 1024 ** power : 1000 ** power);
}

/// Which blocks, and which waits by themselves, the words mean: in quotes all of a name, else a
/// part of one.
function findWords(device, wanted, lives, stalls) {
  const {life, stall} = device, lower = wanted.toLowerCase(), whole = /^"(.+)"$/.exec(lower);
  const means = word =>
    whole ? word.toLowerCase() === whole[1] : word.toLowerCase().includes(lower);
  const matching = about.words.map(means), outside = means(OUTSIDE), untold = means(NOT_TOLD);
  const named = (number, otherwise) => number === NONE ? otherwise : matching[number];
  for (let i = 0; i < life.count; ++i)
    lives[i] = named(life.pin[i], false) || named(life.maker[i], false);
  for (let i = 0; i < stall.count; ++i) {
    if (!named(stall.name[i], outside) && !named(stall.site[i], untold)) continue;
    stalls[i] = 1;
    if (stall.life[i] !== NONE) lives[stall.life[i]] = 1;
  }
}

/// Sets search.lives and search.stalls to what the words mean; null: everything. Waits are those
/// that are named; where none is, all that were for the blocks.
function find(device, text) {
  const {life, stall} = device;
  Object.assign(search, {text, lives: null, stalls: null, list: [], at: -1});
  const wanted = text.trim();
  if (!wanted) return;
  const lives = new Uint8Array(life.count), stalls = new Uint8Array(stall.count);
  let bySize = NaN;
  if (/^0x[0-9a-f]+$/i.test(wanted)) {
    const address = parseInt(wanted, 16);
    for (let i = 0; i < life.count; ++i)
      lives[i] = address >= life.address[i] &&
                 address < life.address[i] + Math.max(life.bytes[i], 1);
  } else if (/^#[0-9]+$/.test(wanted)) {
    const number = parseInt(wanted.slice(1), 10);
    if (number < life.count) lives[number] = 1;
  } else if (/^[<>]/.test(wanted) && !isNaN(bySize = parseSize(wanted.slice(1).trim()))) {
    for (let i = 0; i < life.count; ++i)
      lives[i] = wanted[0] === '>' ? life.bytes[i] > bySize : life.bytes[i] < bySize;
  } else {
    findWords(device, wanted, lives, stalls);
  }
  const sum = flags => flags.reduce((total, each) => total + each, 0);
  if (sum(stalls) === 0)
    for (let i = 0; i < stall.count; ++i)
      if (stall.life[i] !== NONE && lives[stall.life[i]]) stalls[i] = 1;
  for (let i = 0; i < life.count; ++i) if (lives[i]) search.list.push({life: i});
  if (!search.list.length)  // waits for room are of no block
    for (let i = 0; i < stall.count; ++i) if (stalls[i]) search.list.push({wait: i});
  Object.assign(search, {lives, stalls, blocks: sum(lives), waits: sum(stalls)});
}
