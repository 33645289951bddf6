// The lives of blocks: time to the right, addresses upwards (those that no block ever used left
// out). Drawn pixel by pixel, so that a million stretches are no more than a picture.

const search = {text: '', lives: null, stalls: null, list: [], at: -1};

/// Colors as the canvas has them (little-endian), whole and faded into the paper.
const PALETTE = new Uint32Array(16);
function setPalette(paper) {
  const parts = color => [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));
  const pack = list => 0xff000000 | list[2] << 16 | list[1] << 8 | list[0];
  const back = parts(paper);
  PALETTE.fill(pack(back));
  WHERE_COLORS.forEach((color, index) => {
    const own = parts(color);
    PALETTE[index + 1] = pack(own);
    PALETTE[index + 9] = pack(own.map((part, i) => Math.round(back[i] + (part - back[i]) * 0.22)));
  });
}

/// One code for each pixel: 0 nothing, where + 1, and 8 for what was not searched for.
function blockCodes(device, width, height) {
  const codes = new Uint8Array(width * height), {life, stretch} = device;
  const across = width / (view.to - view.from), down = height / (view.high - view.low);
  for (let i = 0; i < stretch.count; ++i) {
    if (stretch.end[i] < view.from || stretch.begin[i] > view.to) continue;
    const of = stretch.life[i];
    const low = life.place[of], high = low + life.rows[of];
    if (high <= view.low || low >= view.high) continue;
    const x0 = Math.max(0, Math.floor((stretch.begin[i] - view.from) * across));
    const x1 = Math.min(width, Math.max(x0 + 1, Math.floor((stretch.end[i] - view.from) * across)));
    const y0 = Math.max(0, Math.floor(height - (high - view.low) * down));
    const y1 = Math.min(height, Math.max(y0 + 1, Math.floor(height - (low - view.low) * down)));
    let code = stretch.where[i] + 1;
    if (search.lives && !search.lives[of]) code += 8;
    const narrow = x1 - x0 === 1 || y1 - y0 === 1;
    for (let y = y0; y < y1; ++y) {
      const row = y * width;
      if (!narrow) {
        codes.fill(code, row + x0, row + x1);
      } else {  // of what shares a pixel, what was searched for, then what is farther away
        for (let x = x0; x < x1; ++x)
          if ((codes[row + x] ^ 8) < (code ^ 8) || codes[row + x] === 0) codes[row + x] = code;
      }
    }
  }
  return codes;
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
    pen.fillRect(LEFT + (touch.at[i] - view.from) * across, bottom - high + 0.5, 1, high - 1);
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

/// The stretch at a place and time, or the nearest in time within `slack` ticks.
function stretchAt(device, tick, place, slack) {
  const {life, stretch} = device;
  let best = -1, nearest = slack;
  for (let i = 0; i < stretch.count; ++i) {
    const distance = Math.max(stretch.begin[i] - tick, tick - stretch.end[i], 0);
    if (distance > nearest) continue;
    const of = stretch.life[i];
    if (place < life.place[of] || place >= life.place[of] + life.rows[of]) continue;
    if (distance === nearest && best >= 0 && stretch.where[best] >= stretch.where[i]) continue;
    best = i;
    nearest = distance;
  }
  return best;
}

const SMALL = 1 << 20;
function lifeText(device, of) {
  const {life} = device;
  const lasts = life.died[of] < device.ends;
  const lines = ['block #' + of + ', ' + bytesText(life.bytes[of]) + ' at 0x' +
                 life.address[of].toString(16),
                 'lived ' + secondsText(secondsOf(life.born[of])) + ' to ' +
                 (lasts ? secondsText(secondsOf(life.died[of])) : 'the end') + ', touched ' +
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
         secondsText(secondsOf(stretch.begin[i])) + ')\n' + lifeText(device, stretch.life[i]);
}

function parseSize(text) {
  const match = /^([0-9.]+)\s*([kmgt]?)(i?)b?$/i.exec(text);
  if (!match) return NaN;
  const power = 'kmgt'.indexOf(match[2].toLowerCase()) + 1;
  return parseFloat(match[1]) * (match[2] === '' ? 1 : match[3] ? 1024 ** power : 1000 ** power);
}

/// Sets search.lives and search.stalls to what the words mean; null: everything.
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
    const lower = wanted.toLowerCase();
    const matching = about.words.map(word => word.toLowerCase().includes(lower));
    for (let i = 0; i < life.count; ++i)
      lives[i] = (life.pin[i] !== NONE && matching[life.pin[i]]) ||
                 (life.maker[i] !== NONE && matching[life.maker[i]]);
    for (let i = 0; i < stall.count; ++i) {
      const name = stall.name[i], site = stall.site[i];
      if (!(name === NONE ? OUTSIDE.includes(lower) : matching[name]) &&
          !(site !== NONE && matching[site])) continue;
      stalls[i] = 1;
      if (stall.life[i] !== NONE) lives[stall.life[i]] = 1;
    }
  }
  for (let i = 0; i < stall.count; ++i)
    if (stall.life[i] !== NONE && lives[stall.life[i]]) stalls[i] = 1;
  for (let i = 0; i < life.count; ++i) if (lives[i]) search.list.push({life: i});
  if (!search.list.length)  // waits for room are of no block
    for (let i = 0; i < stall.count; ++i) if (stalls[i]) search.list.push({wait: i});
  search.blocks = lives.reduce((sum, each) => sum + each, 0);
  search.lives = lives;
  search.stalls = stalls;
  search.waits = stalls.reduce((sum, each) => sum + each, 0);
}
