// Figures, tables, and the curve of other budgets.

function element(name, properties, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

function table(heads, rows) {
  const head = element('tr', {}, ...heads.map(
    ([text, kind]) => element('th', {className: kind || ''}, text)));
  return element('table', {}, element('thead', {}, head), element('tbody', {}, ...rows));
}

function row(cells, jump) {
  const made = element('tr', {className: jump ? 'jump' : ''}, ...cells.map(
    ([content, kind, columns]) =>
      element('td', {className: kind || '', colSpan: columns || 1}, content)));
  return jump ? onChosen(made, jump) : made;
}

/// By a click, or from the keyboard.
function onChosen(made, act) {
  made.tabIndex = 0;
  made.addEventListener('click', act);
  made.addEventListener('keydown', event => { if (event.key === 'Enter') act(); });
  return made;
}

function fill(id, ...content) {
  document.getElementById(id).replaceChildren(...content);
}

function showFigures(device) {
  const {sample, stall, totals} = device;
  const last = column => sample.count ? sample[column][sample.count - 1] : 0;
  const most = column => sample.count ? sample[column].reduce((a, b) => Math.max(a, b), 0) : 0;
  const waited = stall.ns.reduce((sum, each) => sum + each, 0) / 1e9, whole = about.ns / 1e9;
  const figures = [
    [secondsText(whole), 'recorded'],
    [about.rows.toLocaleString('en'), 'events'],
    [bytesText(totals.budget || last('budget')), 'budget'],
    [bytesText(totals.peak_allocated || most('allocated')), 'allocated at most'],
    [bytesText(totals.peak_device || most('resident')), 'on the device at most'],
    [bytesText(totals.out || last('out')), 'copied out'],
    [bytesText(totals.in || last('in')), 'brought back'],
    [secondsText(waited),
     'waited' + (whole ? ' (' + (100 * waited / whole).toFixed(1) + ' %)' : '')],
    [device.life.count.toLocaleString('en'), 'blocks'],
  ];
  fill('figures', ...figures.map(([value, name]) =>
    element('div', {}, element('b', {}, value), element('span', {}, name))));
}

const ROWS_MOST = 15;

/// Rows by a stall's word, the longest first.
function waitTable(stall, wordOf, head, shown = name => name) {
  const sums = new Map();
  for (let i = 0; i < stall.count; ++i) {
    const name = wordOf(stall, i), sum = sums.get(name) || {waits: 0, ns: 0, longest: 0};
    ++sum.waits;
    sum.ns += stall.ns[i];
    sum.longest = Math.max(sum.longest, stall.ns[i]);
    sums.set(name, sum);
  }
  if (sums.size === 0) return element('p', {className: 'small'}, 'Nobody waited.');
  const all = [...sums].sort((a, b) => b[1].ns - a[1].ns), top = all[0][1].ns || 1;
  const list = all.slice(0, ROWS_MOST), rest = all.slice(ROWS_MOST);
  const first = table(
    [[head], ['waits', 'number'], ['together', 'number'], ['longest', 'number'], ['']],
    list.map(([name, sum]) => row([[named(name, shown), 'name'],
      [sum.waits.toLocaleString('en'), 'number'],
      [secondsText(sum.ns / 1e9), 'number'], [secondsText(sum.longest / 1e9), 'number'],
      [bar(sum.ns / top), 'bars']], () => searchFor('"' + name + '"'))));
  const others = rest.reduce((sum, [, each]) => sum + each.ns, 0) / 1e9;
  return element('div', {}, first, element('p', {className: 'small', hidden: !rest.length},
    'and ' + rest.length.toLocaleString('en') + ' more: ' + secondsText(others) + ' together'));
}

/// As shown, with all of it where the mouse rests.
function named(name, shown) { return element('span', {title: name}, shown(name)); }

/// The folder that all lines' files are in, which need not be read in each of them.
const LINE = /^(backward of \S+ at )?(\/.*:\d+ in .*)$/;
function commonFolder(stall) {
  let folder = null;
  for (const site of new Set(stall.site)) {
    const match = site === NONE ? null : LINE.exec(about.words[site]);
    if (!match) continue;
    const own = match[2].replace(/:\d+ in .*$/, '').replace(/[^/]*$/, '');
    if (folder === null) folder = own;
    while (!own.startsWith(folder)) folder = folder.replace(/[^/]*\/$/, '');
  }
  return folder === null || folder === '/' ? '' : folder;
}

function lineText(device, text) {
  const match = device.folder ? LINE.exec(text) : null;
  return match ? (match[1] || '') + match[2].slice(device.folder.length) : text;
}

/// What was said to the user while the job ran.
function showSaid(device) {
  fill('said', ...device.notices.map(({at, words}) => {
    const line = element('p', {title: 'shows when'},
      secondsText(secondsOf(at)) + ': ' + words);
    return onChosen(line, () => {
      const span = ticksOf(5);
      setTimes(at - span, at + span / 5);
      canvas.scrollIntoView({block: 'nearest'});
    });
  }));
}

function bar(part) {
  const made = element('div', {className: 'bar'});
  made.style.width = Math.max(1, 100 * part) + '%';
  return made;
}

function showLongest(device) {
  const {stall} = device;
  const order = [...stall.ns.keys()].sort((a, b) => stall.ns[b] - stall.ns[a]).slice(0, ROWS_MOST);
  if (!order.length) return fill('longest', element('p', {className: 'small'}, 'Nobody waited.'));
  fill('longest', table([['at', 'number'], ['waited', 'number'], ['operator'], ['line'], ['for']],
    order.map(i => row([
      [secondsText(secondsOf(stall.end[i]) - stall.ns[i] / 1e9), 'number'],
      [secondsText(stall.ns[i] / 1e9), 'number'], [operatorOf(stall, i), 'name'],
      [named(siteOf(stall, i), text => lineText(device, text)), 'name'],
      [stall.life[i] === NONE ? 'room' : 'block #' + stall.life[i] + ', ' +
        bytesText(device.life.bytes[stall.life[i]])]], () => showWait(i)))));
}

/// What a reason means, and what changes it; by how it begins.
const MEANINGS = [
  ['held by operators', 'in use at that moment; it may leave when they have ended'],
  ['not yet seen', 'no operator was seen to use it: its uses may go unseen (a library\'s ' +
    'workspace, say)'],
  ['segments of small', 'blocks below 1 MiB share these; they never leave'],
  ['in planned places', 'firn_places: mapped for blocks of an iteration that stay'],
  ['its address was asked', 'somebody may use it unseen; firn.unpin(tensor) takes that back'],
  ['exported by DLPack', 'another library may use it unseen; firn.unpin(tensor) takes that back'],
  ['kept by an object', 'the object may hand it to code that is not seen'],
  ['CUDA graph or MemPool', 'until the graph or the pool goes'],
  ['used by a CUDA graph', 'until the graph\'s pool goes'],
  ['shared with another', 'until it is freed: the other process may use it at any time'],
  ['given to other processes', 'until it is freed: the other process may use it at any time'],
  ['firn.pin()', 'the program asked for it; firn.unpin(tensor) takes that back'],
  ['firn_pin()', 'the program asked for it; firn_unpin() takes that back'],
];
function meaning(reason) {
  const found = MEANINGS.find(([begin]) => reason.startsWith(begin));
  return found ? [element('span', {className: 'means'}, found[1])] : [];
}

/// Between two looks at what is pinned (trace_sample()), with time to spare: what the last one did
/// not name was not pinned any more.
const PINNED_EVERY_S = 1;

function showPinned(device) {
  const {pinned, life, sample} = device, sums = new Map();
  for (let i = 0; i < pinned.count; ++i) {
    const sum = sums.get(pinned.reason[i]) || {most: 0, last: 0, at: 0, blocks: 0};
    sum.most = Math.max(sum.most, pinned.bytes[i]);
    sum.last = pinned.bytes[i];
    sum.at = pinned.at[i];
    sums.set(pinned.reason[i], sum);
  }
  const newest = pinned.count ? pinned.at[pinned.count - 1] : 0;
  const looked = sample.count && sample.at[sample.count - 1] - newest > ticksOf(PINNED_EVERY_S)
    ? Infinity : newest;
  for (let i = 0; i < life.count; ++i) {
    if (life.pin[i] === NONE) continue;
    if (!sums.has(life.pin[i])) sums.set(life.pin[i], {most: NaN, last: NaN, at: 0, blocks: 0});
    ++sums.get(life.pin[i]).blocks;
  }
  if (!sums.size) return fill('pinned', element('p', {className: 'small'}, 'Nothing was pinned.'));
  // What is pinned for less than the time between looks may not have been seen.
  const size = bytes => isNaN(bytes) ? 'not seen' : bytesText(bytes);
  const atEnd = sum =>
    isNaN(sum.last) || looked - sum.at <= ticksOf(0.001) ? size(sum.last) : '0 B';
  fill('pinned', table([['reason'], ['at most', 'number'], ['in the end', 'number'],
    ['blocks pinned so', 'number']],
    [...sums].sort((a, b) => (b[1].most || 0) - (a[1].most || 0)).map(([reason, sum]) =>
      row([[element('span', {}, about.words[reason], ...meaning(about.words[reason]))],
        [size(sum.most), 'number'], [atEnd(sum), 'number'], [sum.blocks || '', 'number']],
        sum.blocks ? () => searchFor('"' + about.words[reason] + '"') : null))));
}

function svg(name, attributes, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/// This run's budget is drawn as far as it does not squeeze the curve into a corner.
const BUDGET_SHOWN_MOST = 1.5;  // times the largest simulated one

function budgetCurve(points, budget) {
  const runs = points.filter(point => !point.error), width = 532, height = 240;
  const chart = svg('svg', {width, height, viewBox: '0 0 532 240', role: 'img'});
  const largest = Math.max(...points.map(point => point.budget_bytes));
  const near = budget && budget <= largest * BUDGET_SHOWN_MOST;
  const most = near ? Math.max(largest, budget) : largest;
  const worst = Math.max(1.2, ...runs.map(point => point.slow_down));
  const x = bytes => 56 + 450 * bytes / most, y = times => 205 - 185 * (times - 1) / (worst - 1);
  for (let i = 0; i <= 4; ++i) {
    const times = 1 + (worst - 1) * i / 4;
    chart.append(svg('line', {x1: 56, x2: 506, y1: y(times), y2: y(times), class: 'grid'}),
      svg('text', {x: 50, y: y(times) + 4, 'text-anchor': 'end', 'font-size': 11, class: 'soft'},
        times.toFixed(2) + 'x'),
      svg('text', {x: x(most * i / 4), y: 222, 'text-anchor': 'middle', 'font-size': 11,
        class: 'soft'}, bytesText(most * i / 4)));
  }
  if (near) chart.append(svg('line', {x1: x(budget), x2: x(budget), y1: 20, y2: 205,
    class: 'budget', 'stroke-dasharray': '6 4'}));
  chart.append(svg('polyline', {fill: 'none', stroke: '#5b8db8', 'stroke-width': 2,
    points: runs.map(point => x(point.budget_bytes) + ',' + y(point.slow_down)).join(' ')}));
  for (const point of runs)
    chart.append(svg('circle', {cx: x(point.budget_bytes), cy: y(point.slow_down), r: 4,
      fill: '#5b8db8'}));
  chart.append(svg('text', {x: 281, y: 237, 'text-anchor': 'middle', 'font-size': 11,
    class: 'soft'}, near ? 'budget (dashed: this run\'s)'
      : budget ? 'budget (this run\'s, ' + bytesText(budget) + ', is far to the right)' : 'budget'),
    svg('text', {x: 56, y: 12, 'font-size': 11, class: 'soft'}, 'time of a steady iteration'));
  return chart;
}

function showBudgets(device) {
  const {points, machine, why} = about.budgets;
  if (device !== devices[0])
    return fill('budgets',
      element('p', {}, 'Simulated for device ' + devices[0].number + ' only.'));
  if (!points) return fill('budgets', element('p', {}, why));
  const heads = ['budget', 'time', 'no kernel ran', 'out', 'in', 'written'];
  const text = element('div', {}, element('p', {className: 'small'}, machine), table(
    heads.map(head => [head, 'number']),
    points.map(point => point.error
      ? row([[bytesText(point.budget_bytes), 'number'], [point.error, '', heads.length - 1]])
      : row([[bytesText(point.budget_bytes), 'number'],
          [point.slow_down.toFixed(3) + 'x', 'number'], [secondsText(point.stall_s), 'number'],
          [bytesText(point.bytes_spilled), 'number'],
          [bytesText(point.bytes_faulted + point.bytes_prefetched), 'number'],
          [bytesText(point.bytes_written), 'number']]))));
  fill('budgets', budgetCurve(points, device.totals.budget), text);
}
