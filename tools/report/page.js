// The page of `moesim report`: draws what stands in the JSON of #data (written by page.cpp).
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
for (const p of data.points) if (!p.parts) Object.assign(p, { parts: {}, instances: [], patch: null });
const by_id = id => document.getElementById(id);
const coarse_pointer = matchMedia('(pointer: coarse)').matches;

// What the reader chose.
const state = {
  on_paper: matchMedia('print').matches,
  x: metric_at(data.x), y: metric_at(data.y), limits: data.answer ? { ttft: null, tpot: null } : { ttft: data.limits.ttft ?? null, tpot: data.limits.tpot ?? null }, statistic: null, frontier_only: false, hidden: new Set(), hidden_parts: new Set(), hidden_hits: new Set(), hidden_turns: new Set(),
  selected: null, sort: null, descending: false,
};

// ---- small things

function metric_at(pointer) { return data.metrics.findIndex(m => m.pointer === pointer); }

// As moesim's tables print numbers.
function number(v) {
  if (v === null || v === undefined) return '–';
  const size = Math.abs(v);
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return v.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
// "Median TPOT" -> "median TPOT"; abbreviations stay.
const within_sentence = label => label.replace(/^[A-Z](?=[a-z])/, first => first.toLowerCase());
const with_unit = metric => metric.unit ? `${metric.label}, ${metric.unit}` : metric.label;
const escaped = text => echarts.format.encodeHTML(String(text));

// element('td', {class: 'text'}, child, ...): children are elements or texts; functions are listeners.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter(c => c !== null));
  return made;
}

function fill_select(id, options, chosen, changed) {
  const select = by_id(id);
  select.replaceChildren(...options.map(([value, text]) => element('option', { value, selected: value === chosen }, text)));
  if (changed) select.onchange = () => changed(select.value);
}

// A copy of config with a JSON patch (RFC 6902: add, remove, replace) applied.
function patched(config, patch) {
  const copy = structuredClone(config);
  for (const { op, path, value } of patch) {
    const keys = path.split('/').slice(1).map(k => k.replaceAll('~1', '/').replaceAll('~0', '~'));
    const last = keys.pop();
    const holder = keys.reduce((at, key) => at[key], copy);
    if (Array.isArray(holder)) {
      const place = last === '-' ? holder.length : Number(last);
      op === 'remove' ? holder.splice(place, 1) : op === 'add' ? holder.splice(place, 0, value) : holder[place] = value;
    } else {
      op === 'remove' ? delete holder[last] : holder[last] = value;
    }
  }
  return copy;
}

// ---- groups and points

const named = (names, values) => names.map((name, i) => [name, values[i]]);
// A value says nothing where it is a bare number or could be of any axis.
const say = (name, value) => /^[-\d.]+( \S+)?$/.test(value) || ['unset', 'true', 'false'].includes(value) ? `${name} ${value}` : value;
const has_pools = p => p.instances.some(([pool]) => pool);
const some_have_pools = data.points.some(has_pools);

// What tells points apart, [{name, of(point)}, ..]: first what groups them. What is the same in all is left out.
const all_columns = [...data.by.map((name, i) => ({ name, by: true, of: p => data.groups[p.group][i] })),
  ...data.settings.map((name, i) => ({ name, by: false, of: p => p.settings[i] }))];
const varies = (column, points) => points.some(p => column.of(p) !== column.of(points[0]));
const varying = all_columns.filter(c => varies(c, data.points));
// Labels also leave out settings that follow from another, e.g. a dispatch that goes with a routing policy.
const follows = (c, from) => {
  const known = new Map();
  return data.points.every(p => known.has(from.of(p)) ? known.get(from.of(p)) === c.of(p) : known.set(from.of(p), c.of(p)));
};
const telling = [...varying].reverse().reduce((kept, c) =>
  !c.by && c.name !== 'seed' && kept.some(from => from !== c && from.name !== 'seed' && follows(c, from)) ? kept.filter(k => k !== c) : kept, all_columns.filter(c => varying.includes(c) || (data.answer && c.by)));
const label_by = (columns, p) => {
  const set = columns.filter(c => c.of(p) !== 'unset');
  return (set.length ? set : columns).map(c => say(c.name, c.of(p))).join(' · ');
};
const group_label = g => label_by(telling.filter(c => c.by), data.points.find(p => p.group === g)) || 'all points';
const settings_label = p => label_by(telling.filter(c => !c.by), p);
const point_label = p => label_by(telling, p) || p.id;
// Labels of some points by what tells these apart; no two are equal.
function labels_of(points) {
  const columns = telling.filter(c => varies(c, points));
  const labels = points.map(p => label_by(columns, p) || point_label(p));
  return labels.map((label, i) => labels.indexOf(label) === i ? label : `${label} · ${points[i].id}`);
}

// Okabe and Ito's colours, which colour-blind readers tell apart; symbols and dashes tell more groups.
const palette = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#7F7F7F'];
const symbols = ['circle', 'triangle', 'rect', 'diamond', 'pin'];
const dashes = ['solid', 'dashed', 'dotted'];
const style_of = g => ({ color: palette[g % palette.length], symbol: symbols[g % symbols.length], dash: dashes[g % dashes.length] });

const part_colours = {
  attention: '#88CCEE', all_reduce: '#6699CC', gate: '#BBBBBB', token_routing: '#CC6677', permute: '#DDCC77', dispatch: '#117733',
  experts: '#AA4499', shared_experts: '#882255', combine: '#44AA99', dense_ffn: '#999933',
  rebalancing: '#332288', pipeline: '#EECC66', other: '#777777',
};

function swatch(g) {
  const { color, symbol } = style_of(g);
  const shapes = {
    circle: '<circle cx="9" cy="7" r="5"/>', triangle: '<path d="M9 1l6 11H3z"/>', rect: '<rect x="4" y="2" width="10" height="10"/>',
    diamond: '<path d="M9 0l6 7-6 7-6-7z"/>', pin: '<path d="M9 14L4 6a5 5 0 1 1 10 0z"/>',
  };
  const span = element('span', { class: 'swatch', 'aria-hidden': 'true' });
  span.innerHTML = `<svg width="18" height="14" fill="${color}">${shapes[symbol]}</svg>`;
  return span;
}

// To 40 of a double's 53 bits: what differs only by how a sum was rounded is equal.
function without_rounding_errors(number) {
  const bits = new BigInt64Array(new Float64Array([number]).buffer);
  bits[0] = (bits[0] + 0x1000n) & ~0x1fffn;
  return new Float64Array(bits.buffer)[0];
}

// Which of these points no other beats: less or more is better as the two metrics say. The same as `moesim pareto`.
function frontier(points, x, y) {
  const sign = m => data.metrics[m].less ? 1 : -1;
  const at = p => [x, y].map(m => sign(m) * without_rounding_errors(p.metrics[m]));
  const order = points.filter(p => p.metrics[x] !== null && p.metrics[y] !== null)
    .sort((a, b) => at(a)[0] - at(b)[0] || at(a)[1] - at(b)[1]);
  const best = [];
  for (const p of order) {
    const last = best.at(-1);
    if (!last || at(p)[1] < at(last)[1] || (at(p)[0] === at(last)[0] && at(p)[1] === at(last)[1])) best.push(p);
  }
  return best;
}

// Why a point's rates are not those of a steady state.
const states = { given_up: 'given up: so many requests had met the limits until then', overloaded: 'overloaded: the wait for a first token grows without end', unsteady: 'no steady state: use more requests', too_short: 'run too short: rates are of the whole run with its ramps' };
const unsteady = p => states[p.state] ?? null;

// Whether a point keeps the limits on TTFT and TPOT that are set; a point without such a latency keeps it.
const latency = (p, name) => p.metrics[metric_at(`/metrics/${state.statistic}_${name}_ms`)] ?? null;
const keeps_limits = p => ['ttft', 'tpot'].every(name => state.limits[name] === null || (latency(p, name) ?? 0) <= state.limits[name]);

const groups = data.groups.map((_, g) => data.points.filter(p => p.group === g));

// Runs that differ in their seed alone.
const seed_place = data.settings.findIndex(name => name === 'seed');
function alike(points) {
  const runs = new Map();
  for (const p of points) {
    const key = JSON.stringify([p.group, seed_place < 0 ? p.id : p.settings.filter((_, i) => i !== seed_place)]);
    runs.set(key, [...(runs.get(key) || []), p]);
  }
  return [...runs.values()];
}

// Each such set as one point, its mean: else the luckiest seed of each would make the frontier.
function over_seeds(points) {
  return alike(points).map(runs => {
    if (runs.length === 1) return runs[0];
    const mean = m => {
      const values = runs.map(p => p.metrics[m]).filter(value => value !== null);
      return values.length ? values.reduce((a, b) => a + b) / values.length : null;
    };
    return { ...runs[0], runs, metrics: data.metrics.map((_, m) => mean(m)), settings: runs[0].settings.map((s, i) => (i === seed_place ? `mean of ${runs.length}` : s)) };
  });
}
const runs_of = p => p.runs || [p];

// Whether two points differ by less than 1 % in a metric, or than two standard errors over their seeds.
const variance_of_mean = (p, m) => {
  const values = runs_of(p).map(run => run.metrics[m]).filter(v => v !== null);
  return values.length < 2 ? 0 : values.reduce((sum, v) => sum + (v - p.metrics[m]) ** 2, 0) / (values.length - 1) / values.length;
};
const tie = (a, b, m) => Math.abs(a.metrics[m] - b.metrics[m]) <=
  Math.max(0.01 * Math.max(Math.abs(a.metrics[m]), Math.abs(b.metrics[m])), 2 * Math.sqrt(variance_of_mean(a, m) + variance_of_mean(b, m)));
const beats = (a, b, m) => !tie(a, b, m) && (data.metrics[m].less ? a.metrics[m] < b.metrics[m] : a.metrics[m] > b.metrics[m]);

const frontiers = () => groups.map(points => frontier(over_seeds(points).filter(keeps_limits), state.x, state.y));

// The mean and the range of both metrics over the seeds of a point.
function ranges_over_seeds(points) {
  const runs = alike(points.filter(p => p.metrics[state.x] !== null && p.metrics[state.y] !== null));
  const spread = values => [values.reduce((a, b) => a + b) / values.length, Math.min(...values), Math.max(...values)];
  return runs.filter(same => same.length > 1)
    .map(same => [...spread(same.map(p => p.metrics[state.x])), ...spread(same.map(p => p.metrics[state.y]))]);
}

// A cross over the mean, as wide and high as the ranges.
function cross_of(color) {
  return (_, api) => {
    const [x, x_low, x_high, y, y_low, y_high] = [0, 1, 2, 3, 4, 5].map(i => api.value(i));
    const line = (from, to) => {
      const [[x1, y1], [x2, y2]] = [api.coord(from), api.coord(to)];
      return { type: 'line', shape: { x1, y1, x2, y2 }, style: { stroke: color, lineWidth: 1.5 } };
    };
    return { type: 'group', children: [line([x_low, y], [x_high, y]), line([x, y_low], [x, y_high])] };
  };
}

// Groups whose points have the same values of both metrics as an earlier group's: [[label, labels of the others], ..].
function identical_groups() {
  const first = new Map();
  groups.forEach((points, g) => {
    const key = JSON.stringify(points.map(p => [p.settings, p.metrics[state.x], p.metrics[state.y]]).sort());
    first.set(key, [...(first.get(key) || []), group_label(g)]);
  });
  return [...first.values()].filter(labels => labels.length > 1).map(([label, ...others]) => [label, others]);
}
const same_curves = () => identical_groups().map(([label, others]) => ` Same curve as ${label}: ${others.join('; ')}.`).join('');

// ---- charts

const paper_width = 680;  // between the margins of A4 and of Letter, in pixels of 1/96 inch
const charts = new Map();  // element id -> chart
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function draw(box, option, height) {
  if (height) box.style.height = `${height}px`;
  let chart = charts.get(box.id);
  if (!chart) {
    // SVG is sharp on paper; a canvas is faster once there is much to draw.
    const renderer = data.points.length > 2000 ? 'canvas' : 'svg';
    chart = echarts.init(box, null, { renderer });
    charts.set(box.id, chart);
  }
  options_of.set(box.id, option);
  chart.resize({ width: state.on_paper ? paper_width : 'auto', height: 'auto' });
  chart.setOption({
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colour('--ink') },
    ...option,
  }, { notMerge: true });
  return chart;
}

const tooltip = () => ({
  confine: true, transitionDuration: 0, showDelay: 0, hideDelay: 0, backgroundColor: colour('--panel'), borderColor: colour('--line'),
  textStyle: { color: colour('--ink'), fontSize: 12 }, extraCssText: 'max-width: 340px; white-space: normal;',
});
const axis = extra => ({
  nameTextStyle: { color: colour('--dim'), fontSize: 12 }, axisLabel: { color: colour('--dim'), hideOverlap: true },
  axisLine: { lineStyle: { color: colour('--line') } }, splitLine: { lineStyle: { color: colour('--grid') } }, ...extra,
});

// Buttons that hide and show, one per item; `hidden` is a set of their keys.
function legend(box, items, hidden, changed) {
  box.replaceChildren(...items.map(({ key, label, mark }) => {
    const button = element('button', { type: 'button', 'aria-pressed': String(!hidden.has(key)), 'data-key': key }, mark, label);
    button.onclick = () => {
      hidden.has(key) ? hidden.delete(key) : hidden.add(key);
      button.setAttribute('aria-pressed', String(!hidden.has(key)));
      changed();
    };
    return button;
  }));
}

// ---- saving

const options_of = new Map();  // element id of a chart -> what it draws

function save(name, type, content) {
  const link = element('a', { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
const file_name = ending => `${data.store.replace(/\.\w+$/, '')}.${ending}`;

// The frontier's chart with a title and a legend, which the page has beside it.
function chart_svg() {
  const shown = groups.map((_, g) => g).filter(g => !state.hidden.has(String(g)));
  const legend_height = 12 + 20 * shown.length, size = { width: 960, height: 480 + legend_height };
  const chart = echarts.init(null, null, { renderer: 'svg', ssr: true, ...size });
  const option = options_of.get('frontier-chart');
  chart.setOption({
    ...option, animation: false, backgroundColor: colour('--back'), dataZoom: option.dataZoom.filter(z => z.type === 'inside'), tooltip: { show: false },
    title: { text: by_id('title').textContent, left: 'center', top: 4, textStyle: { color: colour('--ink'), fontSize: 16 } },
    grid: { left: 72, right: 24, top: 56, bottom: 48 + legend_height },
    legend: {
      orient: 'vertical', left: 60, bottom: 6, itemGap: 6, textStyle: { color: colour('--ink') },
      data: shown.map(g => ({ name: group_label(g), icon: style_of(g).symbol, itemStyle: { color: style_of(g).color, opacity: 1 } })),
    },
  });
  const svg = chart.renderToSVGString();
  chart.dispose();
  return { svg, ...size };
}

function save_png() {
  const { svg, width, height } = chart_svg(), image = new Image(), scale = 2;
  image.onload = () => {
    const canvas = element('canvas', { width: width * scale, height: height * scale });
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => save(file_name('png'), 'image/png', blob));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

function points_csv() {
  const cell = value => /[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  const best = new Set(frontiers().flat().flatMap(runs_of).map(p => p.id));
  const rows = [['id', ...all_columns.map(c => c.name), ...data.metrics.map(with_unit), 'state', 'on_frontier'],
    ...data.points.map(p => [p.id, ...all_columns.map(c => c.of(p)), ...p.metrics.map(v => v ?? ''), p.state ?? '', best.has(p.id) ? 1 : 0])];
  return rows.map(row => row.map(value => cell(String(value))).join(',') + '\n').join('');
}

// ---- the frontier

let zoom = null;  // [[x from, to], [y from, to]] in per cent of the axes; null: all of them

function tooltip_of(p) {
  const rows = varying.map(c => [c.name, c.of(p)])
    .map(([name, value]) => `<tr><td style="padding:0 12px 0 0;text-align:left">${escaped(name)}</td><td>${escaped(value)}</td></tr>`);
  const values = [state.x, state.y].map(m => `${escaped(data.metrics[m].label)}: <b>${number(p.metrics[m])}</b> ${escaped(data.metrics[m].unit)}`);
  return `${values.join('<br>')}<table style="margin-top:4px;font-size:12px">${rows.join('')}</table>`;
}

function draw_frontier() {
  const x = data.metrics[state.x], y = data.metrics[state.y];
  const best = frontiers();
  const series = [];
  const ranges_of = groups.map(ranges_over_seeds);
  groups.forEach((points, g) => {
    if (state.hidden.has(String(g))) return;
    const { color, symbol, dash } = style_of(g);
    const item = p => ({ value: [p.metrics[state.x], p.metrics[state.y]], point: p });
    const drawn = points.filter(p => p.metrics[state.x] !== null && p.metrics[state.y] !== null && !best[g].includes(p));
    const beaten = drawn.filter(keeps_limits), missing = drawn.filter(p => !keeps_limits(p));
    if (!state.frontier_only && beaten.length) {
      series.push({ name: group_label(g), type: 'scatter', symbol, symbolSize: 8, itemStyle: { color, opacity: 0.35 }, data: beaten.map(item), cursor: 'pointer' });
    }
    if (!state.frontier_only && missing.length) {
      series.push({ name: group_label(g), type: 'scatter', symbol, symbolSize: 7, itemStyle: { color: 'transparent', borderColor: color, borderWidth: 1, opacity: 0.5 }, data: missing.map(item), cursor: 'pointer' });
    }
    if (ranges_of[g].length) series.push({ name: group_label(g), type: 'custom', silent: true, z: 1, renderItem: cross_of(color), encode: { x: [0, 1, 2], y: [3, 4, 5] }, data: ranges_of[g] });
    series.push({
      name: group_label(g), type: 'line', symbol, symbolSize: 9, showSymbol: true, showAllSymbol: true, z: 3, triggerEvent: true,
      lineStyle: { color, width: 2, type: dash }, itemStyle: { color }, data: best[g].map(item), cursor: 'pointer',
      emphasis: { scale: 1.5 },
    });
  });
  if (data.answer && series.length) {  // the share that is asked for
    series.at(-1).markLine = {
      silent: true, symbol: 'none', lineStyle: { color: colour('--dim'), type: 'dashed' }, data: [{ yAxis: data.answer.attainment }],
      label: { formatter: 'asked for', position: 'insideStartTop', color: colour('--dim') },
    };
  }
  const chosen = state.selected;
  if (chosen && !state.hidden.has(String(chosen.group)) && chosen.metrics[state.x] !== null && chosen.metrics[state.y] !== null) {
    series.push({
      name: 'selected', type: 'scatter', symbol: 'circle', symbolSize: 22, silent: true, z: 2,
      itemStyle: { color: 'transparent', borderColor: colour('--ink'), borderWidth: 2 },
      data: [[chosen.metrics[state.x], chosen.metrics[state.y]]],
    });
  }
  const window_of = i => zoom ? { start: zoom[i][0], end: zoom[i][1] } : { start: 0, end: 100 };
  // A finger on the chart scrolls the page; the slider and the buttons zoom.
  const inside = coarse_pointer ? [] : [0, 1].map(i => ({
    type: 'inside', [i ? 'yAxisIndex' : 'xAxisIndex']: 0, filterMode: 'none', zoomOnMouseWheel: 'ctrl', moveOnMouseWheel: false, ...window_of(i),
  }));
  const narrow = by_id('frontier-chart').clientWidth < 600;
  const chart = draw(by_id('frontier-chart'), {
    grid: { left: narrow ? 52 : 68, right: 18, top: 34, bottom: state.on_paper ? 48 : 92 },
    tooltip: { ...tooltip(), trigger: 'item', formatter: i => i.data.point ? tooltip_of(i.data.point) : '' },
    xAxis: axis({ type: 'value', scale: true, name: with_unit(x), nameLocation: 'middle', nameGap: 28 }),
    yAxis: axis({ type: 'value', scale: true, name: with_unit(y), nameLocation: 'end', nameGap: 12, nameTextStyle: { align: 'left', color: colour('--dim'), fontSize: 12, padding: [0, 0, 0, narrow ? -44 : -60] } }),
    dataZoom: state.on_paper ? [] : [...inside,
      { type: 'slider', xAxisIndex: 0, filterMode: 'none', bottom: 8, height: 24, showDataShadow: false, brushSelect: false, borderColor: colour('--line'), textStyle: { color: colour('--dim') }, labelFormatter: v => number(v), ...window_of(0) },
      { type: 'slider', yAxisIndex: 0, filterMode: 'none', show: false, ...window_of(1) }],
    series,
  });
  chart.off('click');
  chart.on('click', i => { if (i.data && i.data.point) select(runs_of(i.data.point)[0]); });
  chart.off('datazoom');
  chart.on('datazoom', () => {
    const zooms = chart.getOption().dataZoom.slice(-2);
    zoom = zooms.map(z => [z.start, z.end]);
  });
  const shown = best.flat().flatMap(runs_of).length, all = data.points.length, missing = data.points.filter(p => !keeps_limits(p)).length;
  by_id('frontier-note').textContent = data.answer ? 'Each point: the share of requests within the limits under a load, the mean over seeds; ' +
    'crosses: their range. Runs that were given up count with the share until then.' + same_curves() :
    `Lines join the points that no other of their group beats (${x.less ? 'less' : 'more'} “${x.label}”, ${y.less ? 'less' : 'more'} “${y.label}”): ` +
    `${shown} of ${all} points.` + (shown + missing < all ? ' Faint points are beaten.' : '') +
    (missing ? ` Hollow points miss a limit: ${missing}.` : '') +
    (data.points.some(unsteady) ? ` Not in a steady state: ${data.points.filter(unsteady).length} points, which say why.` : '') + (ranges_of.some(ranges => ranges.length) ? ' Crosses: mean and range over seeds.' : '') + same_curves();
}

function zoom_by(factor) {
  const now = zoom || [[0, 100], [0, 100]];
  const next = now.map(([from, to]) => {
    const middle = (from + to) / 2, half = Math.min(50, (to - from) / 2 * factor);
    const start = Math.min(Math.max(0, middle - half), 100 - 2 * half);
    return [start, start + 2 * half];
  });
  set_zoom(next.every(([from, to]) => to - from > 99.9) ? null : next);
}
function set_zoom(next) { zoom = next; draw_frontier(); }

// Arrow keys walk over the points on frontiers, group by group.
function walk(step) {
  const best = frontiers();
  const points = best.flatMap((list, g) => state.hidden.has(String(g)) ? [] : list);
  if (!points.length) return;
  const place = points.findIndex(p => walk.at && p.id === walk.at.id);
  walk.at = points[(place + step + points.length) % points.length] || points[0];
  const series = charts.get('frontier-chart').getOption().series;
  const s = series.findIndex(one => one.type === 'line' && one.data.some(d => d.point && d.point.id === walk.at.id));
  const d = series[s].data.findIndex(one => one.point.id === walk.at.id);
  charts.get('frontier-chart').dispatchAction({ type: 'showTip', seriesIndex: s, dataIndex: d });
}

// ---- one point

function copy_button(text) {
  const button = element('button', { type: 'button' }, 'Copy');
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // from a file, some browsers have no clipboard
      const area = element('textarea', {}, text);
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  };
  return button;
}

// A pooled or replicated point's EP groups, one a line.
function instances_table(p) {
  const share = v => `${(100 * v).toFixed(0)} %`;
  const pools = has_pools(p);
  const columns = [['step ms', number], ['busy', share], ['waits', share], ['tokens', v => v.toLocaleString('en')], ['KV', share], ['hits', share], ['preempted', String]]
    .map(([name, text], i) => ({ name, text, i })).filter(({ i }) => p.instances.some(row => row[i + 2] > 0));
  const heads = [...(pools ? ['pool'] : []), 'group', ...columns.map(({ name }) => name)];
  return element('details', { id: 'instances' }, element('summary', {}, pools ? 'Pools and their EP groups' : 'EP groups'),
    element('div', { class: 'scroll', tabindex: 0 }, element('table', {},
      element('thead', {}, element('tr', {}, heads.map((t, i) => element('th', { class: pools && !i ? 'text' : '' }, t)))),
      element('tbody', {}, p.instances.map(([pool, group, ...values]) => element('tr', {}, pools ? element('td', { class: 'text' }, pool) : null,
        element('td', {}, String(group)), columns.map(({ text, i }) => element('td', {}, text(values[i])))))))),
    element('p', { class: 'hint' }, 'Mean step, share of time in steps, share of those waiting at barriers, tokens put out, KV cache in use, prefix cache hits, preemptions.' +
      (pools ? ' Steps, breakdown and maps of this point are the decode pool’s unless they say otherwise.' : '')));
}

function show_point() {
  const p = state.selected, box = by_id('point');
  if (!p) return;
  const shown = [state.x, state.y, ...['/metrics/median_ttft_ms', '/metrics/tokens_per_s_per_gpu', '/metrics/median_tpot_ms', '/steps/decode/mean_ms',
    '/experts/by_step_kind/decode/max_activated_mean', '/experts/by_step_kind/decode/max_tokens_mean', '/breakdown/exposed_communication_share',
    '/breakdown/barrier_idle_share', '/metrics/mbu', '/metrics/timeout_share'].map(metric_at)].filter((m, i, all) => m >= 0 && all.indexOf(m) === i && p.metrics[m] !== null);
  const rows = pairs => element('dl', {}, pairs.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
  const config = p.patch && JSON.stringify(patched(data.config, p.patch), null, 1);
  box.replaceChildren(...[
    element('h3', {}, swatch(p.group), group_label(p.group)),
    rows(varying.map(c => [c.name, c.of(p)])),
    unsteady(p) ? element('p', { class: 'note' }, `⚠ ${unsteady(p)}`) : null,
    element('details', { open: true }, element('summary', {}, 'Results'), rows(shown.map(m => [with_unit(data.metrics[m]), number(p.metrics[m])]))),
    p.instances.length ? instances_table(p) : null,
    element('div', { class: 'with-copy' }, 'Reproduce', copy_button(p.command)),
    element('pre', { id: 'command' }, p.command),
    data.commands_need_a_file ? element('p', { class: 'hint' }, 'Save the resolved config as this file, where the sweep file lies.') : null,
    config === null ? element('p', { class: 'hint' }, 'Its steps and config are left out to keep this page small.') :
    element('details', {}, element('summary', {}, 'Resolved config'), element('div', { class: 'with-copy' }, `${p.id}.json`, copy_button(config)),
      element('pre', { class: 'config', tabindex: 0 }, config)),
  ].filter(Boolean));
}

function select(p) {
  state.selected = p;
  history.replaceState(null, '', `#${p.id}`);
  show_point();
  draw_frontier();
  mark_selected();
}

// ---- best within a limit

// The point of the most (or least) y; null of none.
function best_of(points) {
  const less = data.metrics[state.y].less, value = p => p.metrics[state.y];
  return points.reduce((a, b) => !a || (less ? value(b) < value(a) : value(b) > value(a)) ? b : a, null);
}

function show_best() {
  const x = data.metrics[state.x], y = data.metrics[state.y];
  by_id('limit-label').textContent = `${x.label} ${x.less ? 'at most' : 'at least'}`;
  const limit = Number(by_id('limit').value), baseline = Number(by_id('best-baseline').value);
  const keeps = p => p.metrics[state.x] !== null && p.metrics[state.y] !== null &&
    (x.less ? p.metrics[state.x] <= limit : p.metrics[state.x] >= limit);
  const best = groups.map(points => best_of(over_seeds(points).filter(p => keeps(p) && keeps_limits(p))));
  const top = best_of(best.filter(Boolean));
  // Best first; what ties with the best by what is left to the limit.
  const order = groups.map((_, g) => g).sort((a, b) => {
    const [p, q] = [best[a], best[b]];
    if (!p || !q) return !p - !q;
    const ties = [p, q].map(one => tie(one, top, state.y));
    if (ties[0] !== ties[1]) return ties[1] - ties[0];
    const m = ties[0] ? state.x : state.y;
    return (p.metrics[m] - q.metrics[m]) * (data.metrics[m].less ? 1 : -1);
  });
  const tied = best.filter(p => p && tie(p, top, state.y)).length;
  const says_where = best.some(p => p && settings_label(p));
  const head = element('thead', {}, element('tr', {}, ['group', with_unit(y), 'ratio', with_unit(x), ...says_where ? ['at'] : []]
    .map((name, i) => element('th', { class: i === 0 || i === 4 ? 'text' : '' }, name))));
  const rows = order.map(g => {
    const p = best[g], name = element('th', { class: 'text' }, swatch(g), group_label(g));
    if (!p) return element('tr', {}, name, element('td', { colspan: 3 }, groups[g].some(keeps) ? 'none keeps the limits above too' : 'none keeps it'), says_where ? element('td') : '');
    const ratio = best[baseline] ? p.metrics[state.y] / best[baseline].metrics[state.y] : null;
    return element('tr', {}, name, element('td', {}, number(p.metrics[state.y])),
      ratio_cell(g === baseline ? null : ratio, !y.less, best[baseline] && tie(p, best[baseline], state.y)), element('td', {}, number(p.metrics[state.x])),
      says_where ? element('td', { class: 'text wraps' }, settings_label(p)) : '');
  });
  by_id('best-table').replaceChildren(head, element('tbody', {}, rows));
  by_id('best-result').textContent = !top ? '' : tied > 1 ? `${tied} tie at ${number(top.metrics[state.y])} ${y.unit}.` : '';
}

// The point of the most (or least) y that keeps the limits; null where none are set.
function best_within_limits() {
  if (Object.values(state.limits).every(limit => limit === null)) return null;
  const best = best_of(over_seeds(data.points).filter(p => keeps_limits(p) && p.metrics[state.y] !== null));
  return best && runs_of(best)[0];
}

// The point that reaches most of those that no other beats, of those in a steady state if there are any.
function most_of_all() {
  const steady = data.points.filter(p => !unsteady(p));
  const best = best_of(frontier(over_seeds(steady.length ? steady : data.points), state.x, state.y));
  return best ? runs_of(best)[0] : data.points[0];
}

// A ratio, with an arrow and a colour that say whether it is good; neither where that is not known.
function ratio_cell(ratio, more_is_better, unsure = false, title = null) {
  if (ratio === null || ratio === undefined) return element('td', {}, '–');
  const near = unsure || Math.abs(ratio - 1) < 0.0005;
  const good = ratio > 1 === more_is_better;
  return element('td', { class: near ? '' : good ? 'better' : 'worse', title }, `${near ? '' : good ? '✓ ' : '✗ '}${ratio.toFixed(3)}`);
}

function reset_limit() {
  // The limit that the latency has; else where every group has something to say: the middle of what all frontiers reach.
  const limited = ['ttft', 'tpot'].find(name => data.metrics[state.x].pointer.endsWith(`_${name}_ms`) && state.limits[name] !== null);
  if (limited) return void (by_id('limit').value = state.limits[limited]);
  const values = frontiers().flat().map(p => p.metrics[state.x]).sort((a, b) => a - b);
  const x = data.metrics[state.x];
  const middle = values[Math.floor(values.length / 2)];
  if (middle !== undefined) by_id('limit').value = (x.less ? Math.ceil : Math.floor)(middle * 100) / 100;
}

// ---- comparisons

// How likely a fair coin falls at least as unequally.
function by_chance(wins, losses) {
  const n = wins + losses, fewer = Math.min(wins, losses);
  let term = 0.5 ** n, sum = 0;
  for (let i = 0; i <= fewer; ++i) {
    sum += term;
    term *= (n - i) / (i + 1);
  }
  return Math.min(1, 2 * sum);
}

function show_comparisons() {
  by_id('compare').hidden = !data.comparisons.length;
  const moves = m => data.comparisons.some(c => c.summary[m.name].wins + c.summary[m.name].losses > 0);
  const names = data.compared.filter(moves);
  const unsure = s => (s.interval ? s.p_better > 0.05 && s.p_better < 0.95 : Math.abs(s.ratio - 1) < 0.01 || (s.wins > 0 && s.losses > 0 && by_chance(s.wins, s.losses) > 0.05));
  const title_of = c => `${c.candidate.startsWith(c.axis) ? '' : `${c.axis}: `}${c.candidate} over ${c.baseline}`;
  const summary = element('table', {},
    element('thead', {}, element('tr', {}, ['', ...names.map(m => m.label), 'pairs'].map((t, i) => element('th', { class: i ? '' : 'text' }, t)))),
    element('tbody', {}, data.comparisons.map(c => element('tr', {}, element('th', { class: 'text' }, title_of(c)),
      names.map(m => c.summary[m.name]).map((s, i) => ratio_cell(s.ratio, names[i].more_is_better, unsure(s), `${s.wins} pairs better, ${s.losses} worse`)),
      element('td', {}, String(c.pairs.length + c.pairs_left_out))))));
  const pairs_of = c => element('table', {},
    element('thead', {}, element('tr', {}, [...c.settings, ...names.map(m => m.label)].map((t, i) => element('th', { class: i < c.settings.length ? 'text' : '' }, t)))),
    element('tbody', {}, c.pairs.map(pair => element('tr', {}, pair.settings.map(s => element('td', { class: 'text' }, s)),
      names.map(m => ratio_cell(pair.ratios[m.name], m.more_is_better))))));
  by_id('comparisons').replaceChildren(element('div', { class: 'scroll low' }, summary), element('details', {}, element('summary', {}, 'Pair by pair'),
    ...data.comparisons.flatMap(c => [
      element('h3', {}, title_of(c) + (c.pairs_left_out ? ` (${c.pairs_left_out} left out)` : '')),
      ...c.also.length ? [element('p', { class: 'hint' }, `The pairs differ in ${c.also.join(', ')} too.`)] : [],
      element('div', { class: 'scroll' }, pairs_of(c)),
    ])));
}

// ---- where a step's time goes

function draw_parts() {
  const kind = by_id('parts-kind').value, share = by_id('parts-unit').value === 'share';
  const most = 14;
  // Where all points miss a limit no frontier has any.
  const best = data.answer ? data.answer.rows.map(row => data.points.find(p => p.id === row.id)).filter(Boolean)
    : by_id('parts-points').value === 'all' ? [] : frontiers().flat();
  let points = (best.length ? best : data.points).filter(p => p.parts[kind]);
  const all = points.length;
  if (all > most) points = Array.from({ length: most }, (_, i) => points[Math.floor(i * all / most)]);
  const total = p => p.parts[kind].reduce((a, b) => a + b, 0);
  const used = data.parts.map((name, i) => ({ name, i })).filter(({ i }) => points.some(p => p.parts[kind][i] > 0));
  legend(by_id('parts-legend'), used.map(({ name }) => {
    const mark = element('span', { class: 'swatch', 'aria-hidden': 'true' });
    mark.innerHTML = `<svg width="14" height="14"><rect width="14" height="14" rx="3" fill="${part_colours[name]}"/></svg>`;
    return { key: name, label: name.replaceAll('_', ' '), mark };
  }), state.hidden_parts, draw_parts);
  const narrow = by_id('parts-chart').clientWidth < 600;
  const labels = labels_of(points);
  const longest = Math.max(...labels.map(l => l.length), 1);
  const label_width = Math.min((narrow ? 0.38 : 0.42) * by_id('parts-chart').clientWidth, 8 + 7 * longest);
  draw(by_id('parts-chart'), {
    grid: { left: label_width + 12, right: 24, top: 8, bottom: 42 },
    tooltip: {
      ...tooltip(), trigger: 'axis', axisPointer: { type: 'shadow' },
      formatter: items => {
        const p = points[items[0].dataIndex];
        const rows = used.map(({ name, i }) => `<tr><td style="padding:0 12px 0 0">${name.replaceAll('_', ' ')}</td><td style="text-align:right">${number(p.parts[kind][i])} ms</td><td style="text-align:right;padding-left:12px">${(100 * p.parts[kind][i] / total(p)).toFixed(1)} %</td></tr>`);
        return `<b>${escaped(point_label(p))}</b><br>${kind} step: ${number(total(p))} ms<table style="font-size:12px">${rows.join('')}</table>`;
      },
    },
    xAxis: axis({ type: 'value', name: share ? 'share of the step' : `mean ${kind} step, ms`, nameLocation: 'middle', nameGap: 26, max: share && !state.hidden_parts.size ? 1 : null }),
    yAxis: axis({ type: 'category', inverse: true, data: labels, splitLine: { show: false }, axisTick: { show: false }, axisLabel: { color: colour('--ink'), fontSize: 12, interval: 0, width: label_width, overflow: 'break', lineHeight: 13 } }),
    series: used.filter(({ name }) => !state.hidden_parts.has(name)).map(({ name, i }) => ({
      name, type: 'bar', stack: 'step', barCategoryGap: '22%', itemStyle: { color: part_colours[name], borderColor: colour('--back'), borderWidth: 0.8 },
      data: points.map(p => share ? p.parts[kind][i] / total(p) : p.parts[kind][i]),
    })),
  }, 60 + points.length * Math.max(22, 8 + 13 * Math.ceil((narrow ? 9 : 6.9) * longest / label_width)));
  by_id('parts-note').textContent = (all > most ? `${most} of ${all} points shown, evenly spread. ` : '') +
    'Along the critical path: what the slowest GPU does between barriers. Hidden parts leave their bars.' +
    (some_have_pools ? ' Of points with pools these are steps of the decode pool, unless the prefill pool is chosen.' : '');
}

// ---- experts by layer and GPU

// Viridis: its lightness grows steadily, so it reads the same to colour-blind readers and in grey print.
const heat_colours = ['#440154', '#414487', '#2a788e', '#22a884', '#7ad151', '#fde725'];

function ranks_of(p) {
  const plan = patched(data.config, p.patch).parallel || {};
  return { per_rank: plan.ep ? (plan.dp ?? 1) * (plan.tp ?? 1) / plan.ep : 1 };
}
function rank_name(rank, per_rank) {
  return per_rank > 1 ? `GPUs ${rank * per_rank}–${rank * per_rank + per_rank - 1}` : `GPU ${rank}`;
}

function draw_loads() {
  const kind = by_id('loads-kind').value, box = by_id('load-charts');
  const chosen = ['loads-a', 'loads-b'].map(id => data.points.find(p => p.id === by_id(id).value));
  for (const [id, chart] of [...charts]) {
    if (!id.startsWith('load-')) continue;
    chart.dispose();
    charts.delete(id);
  }
  const blocks = [];
  const plots = [];
  for (const [what, title] of [['activated', 'Activated experts per step'], ['tokens', 'Expert tokens per step']]) {
    const loads = chosen.map(p => p && p.loads && p.loads[kind]);
    const values = loads.flatMap(load => load ? load[what] : []);
    if (!values.length) continue;
    const low = 0, high = values.reduce((a, b) => Math.max(a, b));  // from 0: what is nearly equal looks so
    chosen.forEach((p, side) => {
      const load = loads[side];
      const chart_box = element('div', { class: 'chart', id: `load-${what}-${side}`, role: 'img' });
      blocks.push(element('div', { class: 'load' },
        element('h3', {}, title, element('br'), p ? swatch(p.group) : '', p ? point_label(p) : '–'),
        load ? element('p', { class: 'hint' }, `Each step’s busiest GPU: ${number(load[what === 'tokens' ? 'max_tokens_mean' : 'max_activated_mean'])}; ` +
          `all GPUs: ${number(load[what === 'tokens' ? 'tokens_mean' : 'activated_mean'])} (means over layers and steps)`)
          : element('p', { class: 'hint' }, 'No such steps, or left out of this page.'),
        load ? chart_box : ''));
      if (load) plots.push({ chart_box, p, load, what, title, low, high });
    });
    const stops = heat_colours.join(', ');
    blocks.push(element('div', { class: 'scale' }, element('span', {}, number(low)), element('i', { style: `background: linear-gradient(90deg, ${stops})` }),
      element('span', {}, number(high)), element('span', {}, `${title.toLowerCase()}, mean`)));
  }
  box.replaceChildren(...blocks);
  for (const { chart_box, p, load, what, title, low, high } of plots) {
    const ranks = load[what].length / load.layers.length, { per_rank } = ranks_of(p);
    const names = Array.from({ length: ranks }, (_, r) => rank_name(r, per_rank));
    chart_box.setAttribute('aria-label', `${title} of ${point_label(p)} by layer and GPU, from ${number(low)} to ${number(high)}`);
    const mean_of = layer => load[what].slice(layer * ranks, (layer + 1) * ranks).reduce((a, b) => a + b, 0) / ranks;
    draw(chart_box, {
      grid: { left: 62, right: 8, top: 6, bottom: 40 },
      tooltip: { ...tooltip(), formatter: i => `layer ${load.layers[i.value[0]]}, ${names[i.value[1]]}<br><b>${number(i.value[2])}</b> ${title.toLowerCase()}<br>mean of the layer’s GPUs: ${number(mean_of(i.value[0]))}` },
      xAxis: axis({ type: 'category', name: 'layer', nameLocation: 'middle', nameGap: 24, data: load.layers.map(String), axisTick: { show: false }, splitLine: { show: false } }),
      yAxis: axis({ type: 'category', inverse: true, data: names, axisTick: { show: false }, splitLine: { show: false }, axisLabel: { color: colour('--dim'), fontSize: 11, hideOverlap: true } }),
      visualMap: { show: false, min: low, max: high > low ? high : low + 1, inRange: { color: heat_colours } },
      series: [{ type: 'heatmap', data: load[what].map((v, i) => [Math.floor(i / ranks), i % ranks, v]), emphasis: { itemStyle: { borderColor: '#000', borderWidth: 1 } } }],
    }, 60 + Math.min(640, Math.max(120, ranks * 19)));
  }
}

function setup_loads() {
  // One GPU has no imbalance to show.
  const ranks = load => load.activated.length / load.layers.length;
  const with_loads = data.points.filter(p => p.loads && Object.values(p.loads).some(load => ranks(load) > 1));
  by_id('loads').hidden = !with_loads.length;
  if (!with_loads.length) return;
  const kinds = ['decode', 'prefill', 'mixed'].filter(k => with_loads.some(p => p.loads[k]));
  fill_select('loads-kind', kinds.map(k => [k, k]), kinds[0], draw_loads);
  // A pair that differs in one thing tells most: the middle one of the comparison whose busiest GPU changes most.
  const known = id => with_loads.some(p => p.id === id);
  const change = c => Math.abs(Math.log((c.summary.max_activated_mean || {}).ratio || 1));
  const telling = [...data.comparisons].sort((a, b) => change(b) - change(a))
    .flatMap(c => c.pairs.slice(Math.floor(c.pairs.length / 2))).find(pair => known(pair.baseline) && known(pair.candidate));
  const options = with_loads.map(p => [p.id, point_label(p)]);
  fill_select('loads-a', options, telling ? telling.baseline : with_loads[0].id, draw_loads);
  fill_select('loads-b', options, telling ? telling.candidate : with_loads.at(-1).id, draw_loads);
  by_id('loads-note').textContent = 'Left and right share a scale. Means over all steps even out what differs from step to step; the line above each map does not.' + (some_have_pools ? ' Of points with pools these are the decode pool’s GPUs.' : '') +
    (data.loads_left_out ? ` ${data.loads_left_out} points’ maps are left out to keep this page small.` : '');
}

// ---- sessions

const hit_parts = [['found in HBM', '#0072B2'], ['loaded from a tier', '#E69F00'], ['computed', '#BBBBBB']];
const turn_parts = [['queue', '#BBBBBB'], ['load', '#E69F00'], ['prefill', '#0072B2'], ['decode', '#009E73']];

function colour_legend(id, parts, hidden) {
  legend(by_id(id), parts.map(([name, fill]) => {
    const mark = element('span', { class: 'swatch', 'aria-hidden': 'true' });
    mark.innerHTML = `<svg width="14" height="14"><rect width="14" height="14" rx="3" fill="${fill}"/></svg>`;
    return { key: name, label: name, mark };
  }), hidden, draw_sessions);
}

function draw_hits(p) {
  const spans = p.sessions.over_time, narrow = by_id('hits-chart').clientWidth < 600;
  const parts = hit_parts.filter(([name]) => name !== 'loaded from a tier' || spans.some(s => s[4] > 0));
  colour_legend('hits-legend', parts, state.hidden_hits);
  const tokens = (span, name) => name === 'found in HBM' ? span[3] : name === 'computed' ? span[2] - span[3] - span[4] : span[4];
  by_id('hits-chart').setAttribute('aria-label', `Prompt tokens of ${point_label(p)} by where they came from, over the run`);
  draw(by_id('hits-chart'), {
    grid: { left: 46, right: 16, top: 8, bottom: 42 },
    tooltip: {
      ...tooltip(), trigger: 'axis', axisPointer: { type: 'shadow' },
      formatter: items => {
        const span = spans[items[0].dataIndex];
        const rows = parts.map(([name]) => `<tr><td style="padding:0 12px 0 0">${name}</td><td style="text-align:right">${span[2] ? (100 * tokens(span, name) / span[2]).toFixed(1) : '–'} %</td></tr>`);
        return `<b>${number(span[0])} to ${number(span[1])} s</b><br>${span[2].toLocaleString('en')} prompt tokens<table style="font-size:12px">${rows.join('')}</table>`;
      },
    },
    xAxis: axis({ type: 'category', name: 'time of the run, s', nameLocation: 'middle', nameGap: 26, data: spans.map(s => s[0] < 10 ? s[0].toFixed(1) : s[0].toFixed(0)), axisLabel: { color: colour('--dim'), fontSize: 11, interval: narrow ? 5 : 2 } }),
    yAxis: axis({ type: 'value', max: state.hidden_hits.size ? null : 1, axisLabel: { color: colour('--dim'), fontSize: 11, formatter: v => `${Math.round(100 * v)} %` } }),
    series: parts.filter(([name]) => !state.hidden_hits.has(name)).map(([name, color]) => ({
      name, type: 'bar', stack: 'prompt', barCategoryGap: '8%', itemStyle: { color },
      data: spans.map(s => s[2] ? tokens(s, name) / s[2] : 0),
    })),
  }, 240);
}

// A line for each agent of each of the slowest sessions, from the start of its session; between turns it pauses.
function draw_turns(p) {
  const rows = p.sessions.slowest.flatMap(s => [...new Set(s.turns.map(t => t[0]))].map(agent => ({
    s, agent, turns: s.turns.filter(t => t[0] === agent), name: `${s.session}${agent ? `, agent ${agent}` : ''}` })));
  const parts = turn_parts.filter(([name]) => name !== 'load' || rows.some(r => r.turns.some(t => t[4] > t[3])));
  colour_legend('turns-legend', parts, state.hidden_turns);
  const bars = rows.flatMap((row, y) => row.turns.flatMap(turn => turn_parts.map(([name, fill], i) => ({
    row, turn, name, value: [y, turn[2 + i] - row.s.begun_s, turn[3 + i] - row.s.begun_s], itemStyle: { color: fill } }))))
    .filter(bar => bar.value[2] > bar.value[1] && !state.hidden_turns.has(bar.name));
  const lines = rows.map((row, y) => ({ value: [y, row.turns[0][2] - row.s.begun_s, Math.max(...row.turns.map(t => t[6])) - row.s.begun_s], row }));
  const rectangle = height => (_, api) => {
    const [x1, y] = api.coord([api.value(1), api.value(0)]), [x2] = api.coord([api.value(2), api.value(0)]);
    const thick = Math.max(1.5, height * api.size([0, 1])[1]);
    return { type: 'rect', shape: { x: x1, y: y - thick / 2, width: Math.max(0.6, x2 - x1), height: thick }, style: { fill: api.visual('color') } };
  };
  by_id('turns-chart').setAttribute('aria-label', `The slowest sessions of ${point_label(p)}, turn by turn`);
  draw(by_id('turns-chart'), {
    grid: { left: 74, right: 16, top: 8, bottom: 42 },
    tooltip: {
      ...tooltip(),
      formatter: ({ data: { row, turn } }) => {
        const took = `session ${row.s.session}: ${number(row.s.ended_s - row.s.begun_s)} s, ${row.s.turns.length} turns`;
        if (!turn) return `<b>${took}</b>`;
        const rows = turn_parts.map(([name], i) => turn[3 + i] > turn[2 + i] ? `<tr><td style="padding:0 12px 0 0">${name}</td><td style="text-align:right">${number(turn[3 + i] - turn[2 + i])} s</td></tr>` : '');
        return `<b>${took}</b><br>turn ${turn[1] + 1}: ${turn[7].toLocaleString('en')} tokens in, ${turn[8].toLocaleString('en')} out<table style="font-size:12px">${rows.join('')}</table>`;
      },
    },
    xAxis: axis({ type: 'value', name: 's from the session’s first request', nameLocation: 'middle', nameGap: 26 }),
    yAxis: axis({ type: 'category', inverse: true, data: rows.map(r => r.name), name: '', splitLine: { show: false }, axisTick: { show: false }, axisLabel: { color: colour('--dim'), fontSize: 11, interval: 0 } }),
    series: [
      { type: 'custom', renderItem: rectangle(0.04), data: lines, encode: { x: [1, 2], y: 0 }, itemStyle: { color: colour('--dim') } },
      { type: 'custom', renderItem: rectangle(0.62), data: bars, encode: { x: [1, 2], y: 0 }, clip: true },
    ],
  }, 60 + rows.length * 26);
  by_id('sessions-note').textContent = 'Lines between bars are pauses: tools run, a user thinks, other agents work. ' +
    'Queue: until the first step of the prompt. Numbers are those of sessions in order of their beginning.';
}

function draw_sessions() {
  const p = data.points.find(point => point.id === by_id('sessions-point').value);
  draw_hits(p);
  draw_turns(p);
}

function setup_sessions() {
  const told = data.points.filter(p => p.sessions);
  by_id('sessions').hidden = !told.length;
  if (!told.length) return;
  const chosen = told.find(p => p.id === data.chosen) || told[0];
  fill_select('sessions-point', told.map(p => [p.id, point_label(p)]), chosen.id, draw_sessions);
}

// ---- all points

// Paper is not wide enough for every metric.
const on_paper_too = metric => metric === state.x || metric === state.y || ['/metrics/median_ttft_ms', '/steps/decode/mean_ms',
  '/experts/by_step_kind/decode/max_activated_mean', '/experts/by_step_kind/decode/max_tokens_mean'].includes(data.metrics[metric].pointer);

function show_points() {
  const metrics = data.metrics.map((m, i) => ({ name: with_unit(m), value: p => p.metrics[i], kind: on_paper_too(i) ? '' : 'screen-only' }));
  const differs = c => data.points.some(p => number(c.value(p)) !== number(c.value(data.points[0])));
  const columns = [...varying.map(c => ({ name: c.name, text: c.of })), ...metrics.filter(differs)];
  const same = metrics.filter(c => !differs(c) && c.value(data.points[0]) !== null);
  by_id('points-same').textContent = same.length ? `In all points: ${same.map(c => `${within_sentence(c.name)} ${number(c.value(data.points[0]))}`).join('; ')}.` : '';
  const key = (c, p) => c.value ? c.value(p) : isNaN(c.text(p)) ? c.text(p) : Number(c.text(p));
  const rows = [...data.points];
  if (state.sort !== null) {
    const c = columns[state.sort];
    rows.sort((a, b) => {
      const [u, v] = [key(c, a), key(c, b)];
      if (u === null || v === null) return (u === null) - (v === null);  // the unknown last
      return (typeof u === typeof v ? (u < v ? -1 : u > v ? 1 : 0) : typeof u === 'number' ? -1 : 1) * (state.descending ? -1 : 1);
    });
  }
  const sort_by = i => () => {
    state.descending = state.sort === i ? !state.descending : false;
    state.sort = i;
    show_points();
    by_id('points-table').querySelectorAll('thead button')[i].focus();
  };
  const best = new Set(frontiers().flat().flatMap(runs_of).map(p => p.id));
  by_id('points-table').replaceChildren(
    element('thead', {}, element('tr', {}, element('th', { class: 'text' }, 'point'), columns.map((c, i) => element('th', {
      class: c.value ? c.kind : 'text', 'aria-sort': state.sort === i ? (state.descending ? 'descending' : 'ascending') : 'none',
    }, element('button', { type: 'button', click: sort_by(i) }, c.name + (state.sort === i ? (state.descending ? ' ▼' : ' ▲') : '')))))),
    element('tbody', {}, rows.map(p => element('tr', { 'data-id': p.id },
      element('td', { class: 'text' }, swatch(p.group), element('button', {
        type: 'button', class: 'open', 'aria-label': `Show ${point_label(p)}`, click: () => { select(p); by_id('point').scrollIntoView({ block: 'nearest' }); },
      }, best.has(p.id) ? 'show ★' : 'show')),
      columns.map(c => element('td', { class: c.value ? c.kind : 'text' }, c.value ? number(c.value(p)) : c.text(p)))))));
  mark_selected();
}

function mark_selected() {
  for (const row of by_id('points-table').querySelectorAll('tbody tr')) {
    row.classList.toggle('selected', state.selected !== null && row.dataset.id === state.selected.id);
  }
}

function show_unfinished() {
  const box = by_id('unfinished');
  box.hidden = !data.unfinished.length;
  if (box.hidden) return;
  const differs = i => data.unfinished.some(p => p.settings[i] !== data.unfinished[0].settings[i]);
  const shown = data.axes.map((_, i) => i).filter(differs);
  box.replaceChildren(
    element('summary', {}, `Without a result: ${data.unfinished.length}`),
    element('div', { class: 'scroll' }, element('table', {},
      element('thead', {}, element('tr', {}, [...shown.map(i => data.axes[i]), 'status', 'why'].map(t => element('th', { class: 'text' }, t)))),
      element('tbody', {}, data.unfinished.slice(0, 200).map(p => element('tr', {}, [...shown.map(i => p.settings[i]), p.status].map(t => element('td', { class: 'text' }, t)),
        element('td', { class: 'text', style: 'white-space: normal; min-width: 200px' }, p.error)))))),
    data.unfinished.length > 200 ? element('p', { class: 'hint' }, `and ${data.unfinished.length - 200} more`) : '');
}

// ---- the answer of a plan

// A text that was broken into lines of a terminal, in lines as long as the page has them.
const unwrapped = text => text.trim().replace(/(.{72,})\n +/g, '$1 ').replace(/(.{84,})\n/g, '$1 ');

function show_answer() {
  document.body.classList.toggle('plan', !!data.answer);
  by_id('answer').hidden = !data.answer;
  if (!data.answer) return;
  by_id('frontier-title').textContent = 'Requests within the limits, by load';
  const { head, rows, engine, notes } = data.answer;
  const names = head.map(name => name.replace('\n/', '/').replaceAll('\n', ' '));
  const differs = i => rows.length < 2 || rows.some(row => row.cells[i] !== rows[0].cells[i]);
  const shown = names.map((_, i) => i).filter(i => differs(i) && rows.some(row => row.cells[i] !== '-'));
  const group_of = row => Math.max(0, data.groups.findIndex((_, g) => data.points.some(p => p.id === row.id && p.group === g)));
  const same = names.map((_, i) => i).filter(i => !differs(i) && rows[0].cells[i] !== '-');
  by_id('answer-same').textContent = same.length ? `In all: ${same.map(i => `${names[i]} ${rows[0].cells[i]}`).join(', ')}.` : '';
  by_id('answer-notes').textContent = unwrapped(notes);
  by_id('answer-table').replaceChildren(
    element('thead', {}, element('tr', {}, element('th', { class: 'text' }, 'layout'), shown.map(i => element('th', {}, names[i])))),
    element('tbody', {}, rows.flatMap((row, r) => [
      element('tr', { class: 'has-launch' }, element('td', { class: 'name' }, swatch(group_of(row)), `${r + 1}: ${row.name}`, element('small', {}, row.remark)),
        shown.map(i => element('td', {}, row.cells[i]))),
      element('tr', { class: 'launch' }, element('td', { colspan: shown.length + 1 }, element('details', {},
        element('summary', {}, `Launch ${r + 1} with ${engine}`), copy_button(row.launch), element('pre', { tabindex: 0 }, row.launch)))),
    ])));
}

// ---- the whole page

function show_header() {
  const title = data.title || data.store;
  document.title = `${title} · moesim`;
  by_id('title').textContent = title;
  const along = telling.filter(c => !c.by).map(c => c.name), by = telling.filter(c => c.by).map(c => c.name);
  by_id('subtitle').textContent = data.answer ? unwrapped(data.answer.question) :
    `${data.points.length} simulated points` + (by.length ? `, by ${by.join(' and ')}` : '') +
    (along.length ? `; along each curve: ${along.join(', ')}` : '') + ` · ${data.store}`;
  by_id('trust').textContent = data.trust;
  by_id('trust-box').hidden = !data.trust;
  by_id('made-by').textContent = `Made by moesim ${data.moesim || ''}. Charts by Apache ECharts. This file is complete: it loads nothing from anywhere.`;
}

// What the chart shows, in a sentence: whose points no other beats, and the most that they reach. What ties is not ahead.
function show_result() {
  if (data.answer) return void (by_id('result').textContent = data.answer.result);
  const means = groups.map(points => over_seeds(points).filter(keeps_limits).filter(p => p.metrics[state.x] !== null && p.metrics[state.y] !== null));
  const best = frontier(means.flat(), state.x, state.y);
  by_id('result').hidden = !best.length;
  if (!best.length) return;
  const x = data.metrics[state.x], y = data.metrics[state.y];
  const places = list => list.map(group_label).join(list.length > 2 ? '; ' : ' and ');
  const keeps_up = (g, p) => means[g].some(q => !beats(p, q, state.x) && !beats(p, q, state.y));
  const of_group = data.groups.map((_, g) => best.filter(p => keeps_up(g, p)).length);
  const most = Math.max(...of_group);
  const leaders = of_group.flatMap((count, g) => (count === most ? [g] : []));
  const top = best_of(best);
  const at_top = data.groups.map((_, g) => g).filter(g => keeps_up(g, top));
  const reached = `${y.label} reaches ${number(top.metrics[state.y])}${y.unit ? ` ${y.unit}` : ''} at a ${within_sentence(x.label)} of ${number(top.metrics[state.x])}${x.unit ? ` ${x.unit}` : ''}`;
  const ahead = leaders.length > 1 ? `${leaders.length === groups.length ? `All ${leaders.length}` : leaders.length} tie at ${most} of the ${best.length} points that no other beats${leaders.length === groups.length ? '' : `: ${places(leaders)}`}.`
    : `${group_label(leaders[0])} is ahead: ${most} of the ${best.length} points that no other beats.`;
  by_id('result').textContent = data.groups.length < 2 ? `${reached}.` : `${ahead} ${reached}, by ${at_top.length > 4 ? `${at_top.length} groups that tie` : places(at_top)}.`;
}

function draw_all() {
  draw_frontier();
  draw_parts();
  if (!by_id('loads').hidden && by_id('loads-box').open) draw_loads();
  if (!by_id('sessions').hidden) draw_sessions();
}

function setup_limits() {
  const names = { p90: 'p90', p99: 'p99', median: 'median', mean: 'mean' };
  const known = Object.keys(names).filter(s => ['ttft', 'tpot'].some(l => metric_at(`/metrics/${s}_${l}_ms`) >= 0));
  by_id('limits').hidden = !known.length;
  state.statistic = known[0] ?? null;
  fill_select('limit-statistic', known.map(s => [s, names[s]]), state.statistic, s => { state.statistic = s; limits_changed(); });
  for (const name of ['ttft', 'tpot']) {
    const input = by_id(`limit-${name}`);
    input.value = state.limits[name] ?? '';
    input.oninput = () => { state.limits[name] = input.value === '' ? null : Number(input.value); limits_changed(); };
  }
}

function limits_changed() {
  show_result();
  show_best();
  show_points();
  draw_frontier();
  draw_parts();
}

function axes_changed() {
  show_result();
  zoom = null;
  reset_limit();
  show_best();
  show_point();
  show_points();
  draw_all();
}

function start() {
  show_header();
  show_answer();
  setup_limits();
  show_result();
  const metrics = data.metrics.map((m, i) => [String(i), with_unit(m)]);
  fill_select('x-metric', metrics, String(state.x), v => { state.x = Number(v); axes_changed(); });
  fill_select('y-metric', metrics, String(state.y), v => { state.y = Number(v); axes_changed(); });
  by_id('frontier-only').onchange = event => { state.frontier_only = event.target.checked; draw_frontier(); };
  by_id('save-svg').onclick = () => save(file_name('svg'), 'image/svg+xml', chart_svg().svg);
  by_id('save-png').onclick = save_png;
  by_id('save-csv').onclick = () => save(file_name('csv'), 'text/csv', points_csv());
  by_id('loads-box').ontoggle = () => by_id('loads-box').open && draw_loads();
  by_id('zoom-in').onclick = () => zoom_by(0.6);
  by_id('zoom-out').onclick = () => zoom_by(1 / 0.6);
  by_id('zoom-reset').onclick = () => set_zoom(null);
  const all_groups = data.groups.map((_, g) => ({ key: String(g), label: group_label(g), mark: swatch(g) }));
  legend(by_id('frontier-legend'), all_groups, state.hidden, draw_frontier);
  by_id('frontier-chart').addEventListener('keydown', event => {
    const actions = {
      ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), ArrowDown: () => walk(1), ArrowUp: () => walk(-1),
      Enter: () => walk.at && select(runs_of(walk.at)[0]), '+': () => zoom_by(0.6), '-': () => zoom_by(1 / 0.6), 0: () => set_zoom(null),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  fill_select('best-baseline', data.groups.map((_, g) => [String(g), group_label(g)]), '0', show_best);
  by_id('limit').oninput = show_best;
  reset_limit();
  const kinds = ['decode', 'prefill', 'mixed', 'prefill pool: prefill', 'prefill pool: mixed'].filter(k => data.points.some(p => p.parts[k]));
  by_id('breakdown').hidden = !kinds.length;
  fill_select('parts-kind', kinds.map(k => [k, k]), kinds[0], draw_parts);
  by_id('parts-unit').onchange = draw_parts;
  by_id('parts-points').onchange = draw_parts;
  setup_loads();
  setup_sessions();
  show_best();
  show_comparisons();
  show_unfinished();
  const asked = data.points.find(p => `#${p.id}` === location.hash);
  state.selected = asked || data.points.find(p => p.id === data.chosen) || best_within_limits() || most_of_all();
  show_point();
  show_points();
  draw_all();
  let waiting = 0;
  addEventListener('resize', () => {
    clearTimeout(waiting);
    waiting = setTimeout(draw_all, 100);
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw_all);
  // Paper has its own width, and no sliders.
  const set_paper = on_paper => () => { state.on_paper = on_paper; draw_all(); };
  addEventListener('beforeprint', set_paper(true));
  addEventListener('afterprint', set_paper(false));
  matchMedia('print').addEventListener('change', event => set_paper(event.matches)());
}

start();
