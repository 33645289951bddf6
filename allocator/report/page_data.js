'use strict';
// The trace's columns, and words for their numbers.

const about = JSON.parse(document.getElementById('about').textContent);
const NONE = 0xffffffff;
const ON_DEVICE = 0, DROPPED = 4, FAULTING = 5;  // of WHERE; from FAULTING on: on its way back
const WHERE = ['on the device', 'on its way out', 'in host memory', 'on NVMe',
               'nowhere, to be made again', 'on its way back, waited for',
               'on its way back, ahead of its use', 'being made again'];
const WHERE_COLORS = ['#5b8db8', '#f2a541', '#ecd06f', '#8f6bb3', '#a9b3ba', '#cf3f52', '#4fa36b',
                      '#2fb5c4'];

async function readColumns() {
  const text = document.getElementById('columns').textContent;
  const letters = atob(text), packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; ++i) packed[i] = letters.charCodeAt(i);
  if (!window.DecompressionStream) throw new Error('it wants a browser of 2023 or later');
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return await new Response(stream).arrayBuffer();
}

function addUp(steps) {
  for (let i = 1; i < steps.length; ++i) steps[i] += steps[i - 1];  // modulo 2^32, as written
  return steps;
}

/// {life: {address, bytes, ...}, stretch: {...}, ...}: of each column an array.
function readDevice(entry, buffer) {
  const device = {number: entry.device, unit: entry.unit, places: entry.places,
                  totals: entry.totals || {}, notices: entry.notices};
  for (const {name, type, at, count} of entry.columns) {
    const [group, column] = name.split('.');
    const array = type === 'u8' ? new Uint8Array(buffer, at, count)
                : type === 'f64' ? new Float64Array(buffer, at, count)
                : new Uint32Array(buffer, at, count);
    (device[group] ||= {count})[column] = type === 'steps' ? addUp(array) : array;
  }
  return device;
}

/// What is counted once, for hovering and searching.
function countUp(device) {
  const {life, stretch, touch, stall} = device;
  life.touches = new Uint32Array(life.count);
  for (let i = 0; i < touch.count; ++i) ++life.touches[touch.life[i]];
  life.trips = new Uint32Array(life.count);  // begun early or late, a trip ends once
  const before = new Uint8Array(life.count);
  for (let i = 0; i < stretch.count; ++i) {
    const of = stretch.life[i];
    if (stretch.where[i] === ON_DEVICE && before[of] >= FAULTING) ++life.trips[of];
    before[of] = stretch.where[i];
  }
  life.waited = new Float64Array(life.count);
  for (let i = 0; i < stall.count; ++i)
    if (stall.life[i] !== NONE) life.waited[stall.life[i]] += stall.ns[i];
  // As place units: at least one.
  life.rows = new Uint32Array(life.count);
  for (let i = 0; i < life.count; ++i)
    life.rows[i] = Math.max(1, Math.ceil(life.bytes[i] / device.unit));
  device.folder = commonFolder(stall);
  device.ends = Math.max(1, Math.floor(about.ns / about.tick_ns));
}

function words(number, otherwise) { return number === NONE ? otherwise : about.words[number]; }
const OUTSIDE = 'outside operators', NOT_TOLD = 'not told';
const operatorOf = (stall, i) => words(stall.name[i], OUTSIDE);
const siteOf = (stall, i) => words(stall.site[i], NOT_TOLD);

const timesText = count => count === 1 ? 'once' : count + ' times';

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; Math.abs(bytes) >= 1023.5 && unit < 4; ++unit) bytes /= 1024;  // (as it is rounded)
  return (unit === 0 || bytes >= 99.95 ? bytes.toFixed(0) : bytes.toFixed(bytes < 9.995 ? 2 : 1)) +
         ' ' + units[unit];
}

function secondsText(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return '0 s';
  if (size >= 100) return seconds.toFixed(1) + ' s';
  if (size >= 0.9995) return seconds.toFixed(2) + ' s';
  if (size >= 0.9995e-3) return (seconds * 1e3).toFixed(size >= 0.1 ? 0 : 2) + ' ms';
  if (size >= 0.9995e-6) return (seconds * 1e6).toFixed(1) + ' us';
  return (seconds * 1e9).toFixed(0) + ' ns';
}

const secondsOf = ticks => ticks * about.tick_ns / 1e9;
const ticksOf = seconds => seconds * 1e9 / about.tick_ns;

/// The first index in a sorted array whose value is at least `value`.
function firstAt(array, value) {
  let low = 0, high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}
