// Opens a report in headless Chromium, without a network, and uses it as its reader would.
//   node check.mjs CHROMIUM REPORT.html PARETO.csv FOLDER POOLS.html PLAN.html    (the CSV of `moesim pareto`, for the folder
//   of screenshots, the report of a sweep over pools, the page of a plan)
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const { chromium } = createRequire(new URL('../../tools/report/package.json', import.meta.url))('playwright-core');
const [executablePath, report, pareto_csv, folder, pools, plan] = process.argv.slice(2);
fs.mkdirSync(folder, { recursive: true });

const browser = await chromium.launch({
  executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

// A page in which anything said on the console, thrown, or asked of a network is collected.
async function open(width, options = {}, file = report) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, offline: true, ...options });
  const complaints = [];
  await context.route('**/*', route => {
    if (/^(file|data):/.test(route.request().url())) return route.continue();
    complaints.push(`asked for ${route.request().url()}`);
    return route.abort();
  });
  const page = await context.newPage();
  page.setDefaultTimeout(120000);  // a loaded machine draws slowly
  page.on('console', message => complaints.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', error => complaints.push(`thrown: ${error}`));
  await page.goto(pathToFileURL(file).href);
  await page.waitForFunction(() => window.echarts && document.querySelector('#frontier-chart svg path'));
  return { page, complaints };
}

const chart_at = (page, group, place) => page.evaluate(([g, i]) => {
  const chart = echarts.getInstanceByDom(document.getElementById('frontier-chart'));
  const series = chart.getOption().series;
  const s = series.findIndex(one => one.type === 'line' && one.data[0].point.group === g);
  const point = series[s].data.at(i).point;
  const box = document.getElementById('frontier-chart').getBoundingClientRect();
  const [x, y] = chart.convertToPixel({ seriesIndex: s }, series[s].data.at(i).value);
  return { x: box.x + x, y: box.y + y, id: point.id, command: point.command, group: chart.getOption().series[s].name };
}, [group, place]);
const x_range = page => page.evaluate(() => {
  const [from, to] = echarts.getInstanceByDom(document.getElementById('frontier-chart')).getModel().getComponent('xAxis', 0).axis.scale.getExtent();
  return to - from;
});
const series_names = page => page.evaluate(() =>
  [...new Set(echarts.getInstanceByDom(document.getElementById('frontier-chart')).getOption().series.map(s => s.name))].filter(n => n !== 'selected'));
const tooltip_in = (page, chart, text) => page.locator(`${chart} > div`).filter({ hasText: text }).last();
// What a reader is not to see: a page without end, a column that says nothing, two things under one name.
async function check_brevity(page, what) {
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  assert.ok(height <= 3000, `${what}: ${height} px tall`);
  const constant = await page.evaluate(() => ['answer-table', 'points-table'].flatMap(id => {
    const rows = [...document.querySelectorAll(`#${id} tbody tr:not(.launch)`)].map(row => [...row.children].map(cell => cell.textContent));
    const heads = [...document.querySelectorAll(`#${id} thead th`)].map(cell => cell.textContent);
    return rows.length < 2 ? [] : heads.filter((head, i) => head !== 'point' && rows.every(row => row[i] === rows[0][i]));
  }));
  assert.deepEqual(constant, [], `${what}: columns of one value`);
  const names = await page.evaluate(() => ({
    legends: [...document.querySelectorAll('.legend')].map(box => [...box.children].map(one => one.textContent)),
    bars: echarts.getInstanceByDom(document.getElementById('parts-chart')).getOption().yAxis[0].data,
    drawn: [...document.querySelectorAll('#parts-chart text')].map(one => one.textContent),
  }));
  for (const list of [...names.legends, names.bars]) assert.deepEqual(list, [...new Set(list)], `${what}: equal names`);
  assert.ok(names.bars.length > 1 && !names.drawn.some(text => text.includes('...')), `${what}: names are cut`);
  return names;
}
async function saved(page, button) {
  const [download] = await Promise.all([page.waitForEvent('download'), page.locator(button).click()]);
  return fs.readFileSync(await download.path());
}
const fits = page => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);

try {
  const { page, complaints } = await open(1280);
  await page.screenshot({ path: path.join(folder, 'report-1280.png'), fullPage: true });
  assert.equal(await page.title(), 'tiny on 8 x H100 · moesim');
  assert.ok(await fits(page), 'wider than the window at 1280');

  // The lines are what `moesim pareto` calls the frontiers.
  const on_lines = await page.evaluate(() => echarts.getInstanceByDom(document.getElementById('frontier-chart')).getOption().series
    .filter(s => s.type === 'line').flatMap(s => s.data.map(d => d.point.id)).sort());
  const expected = fs.readFileSync(pareto_csv, 'utf8').trim().split('\n').slice(1).filter(line => line.endsWith(',1')).map(line => line.split(',')[0]).sort();
  assert.ok(expected.length >= 4 && expected.length < 24);
  assert.deepEqual(on_lines, expected);

  // Hovering a point shows its settings.
  const point = await chart_at(page, 3, -1);
  await page.mouse.move(point.x + 60, point.y - 60);
  await page.mouse.move(point.x, point.y, { steps: 4 });
  const tip = tooltip_in(page, '#frontier-chart', 'Median TPOT');
  await tip.waitFor({ state: 'visible', timeout: 60000 });
  const text = await tip.innerText();
  for (const part of ['replication', '1.5', 'decode', 'metro', 'concurrency per rank', 'max num seqs']) assert.ok(text.includes(part), `${part} in ${text}`);

  // Clicking it shows all of it: command and resolved config.
  await page.mouse.click(point.x, point.y);
  await page.waitForFunction(id => location.hash === `#${id}`, point.id);
  assert.equal(await page.locator('#command').innerText(), point.command);
  const config = JSON.parse(await page.locator('pre.config').textContent());
  assert.equal(config.placement.replication, 1.5);
  assert.ok(JSON.stringify(config.token_routing.decode).includes('metro'));
  assert.ok(!(await page.locator('#point').innerText()).includes('null'));

  // A click on a legend entry hides its group, another shows it.
  const names = await series_names(page);
  assert.equal(names.length, 4);
  const entry = page.locator('#frontier-legend button').nth(1);
  await entry.click();
  assert.equal(await entry.getAttribute('aria-pressed'), 'false');
  assert.deepEqual(await series_names(page), names.filter((_, i) => i !== 1));
  await entry.click();
  assert.deepEqual(await series_names(page), names);

  // Ctrl + wheel, the buttons and the keys zoom.
  const whole = await x_range(page);
  const box = await page.locator('#frontier-chart').boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.keyboard.down('Control');
  await page.mouse.wheel(0, -400);
  await page.keyboard.up('Control');
  await page.waitForFunction(whole => {
    const [from, to] = echarts.getInstanceByDom(document.getElementById('frontier-chart')).getModel().getComponent('xAxis', 0).axis.scale.getExtent();
    return to - from < whole * 0.95;
  }, whole, { timeout: 60000 });
  await page.locator('#zoom-reset').click();
  assert.equal(await x_range(page), whole);
  await page.locator('#zoom-in').click();
  assert.ok(await x_range(page) < whole);
  await page.locator('#zoom-out').click();
  assert.ok(Math.abs(await x_range(page) - whole) < 1e-6 * whole);

  // Without a mouse: the chart is reached by Tab; arrows walk, Enter selects, plus zooms.
  await page.locator('#frontier-legend button').last().focus();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'frontier-chart');
  const before = await page.evaluate(() => location.hash);
  await page.keyboard.press('ArrowRight');
  await tooltip_in(page, '#frontier-chart', 'Median TPOT').waitFor({ state: 'visible', timeout: 60000 });
  await page.keyboard.press('Enter');
  assert.notEqual(await page.evaluate(() => location.hash), before);
  await page.keyboard.press('+');
  assert.ok(await x_range(page) < whole);
  await page.keyboard.press('0');
  assert.equal(await x_range(page), whole);

  // A limit that no point keeps empties the lines and is counted; without it they are as before.
  const on_lines_now = () => page.evaluate(() => echarts.getInstanceByDom(document.getElementById('frontier-chart')).getOption().series
    .filter(s => s.type === 'line').flatMap(s => s.data.map(d => d.point.id)).sort());
  await page.locator('#limit-tpot').fill('0');
  assert.deepEqual(await on_lines_now(), []);
  assert.match(await page.locator('#frontier-note').innerText(), /Hollow points miss a limit: [1-9]/);
  assert.match(await page.locator('#best-table').innerText(), /none keeps/);
  await page.locator('#limit-tpot').fill('');
  assert.deepEqual(await on_lines_now(), expected);
  assert.ok(!(await page.locator('#frontier-note').innerText()).includes('Hollow'));

  // Other axes, the best within a limit, comparisons.
  await page.locator('#x-metric').selectOption({ label: 'Median TTFT, ms' });
  assert.match(await page.locator('#frontier-note').innerText(), /less “Median TTFT”/);
  assert.match(await page.locator('#limit-label').innerText(), /Median TTFT at most/);
  await page.locator('#limit').fill('1e9');
  assert.equal(await page.locator('#best-table tbody tr').count(), 4);
  assert.ok(!(await page.locator('#best-table').innerText()).includes('none keeps'));
  await page.locator('#limit').fill('0');
  assert.match(await page.locator('#best-table').innerText(), /none keeps it/);
  assert.match(await page.locator('#comparisons').innerText(), /decode: metro over even/);
  assert.match(await page.locator('#comparisons').innerText(), /replication: 1.5 over 1.0/);

  // Step parts: a hidden part leaves the bars.
  const bars = () => page.evaluate(() => echarts.getInstanceByDom(document.getElementById('parts-chart')).getOption().series.map(s => s.name));
  assert.ok((await bars()).includes('token_routing'));
  await page.locator('#parts-legend button[data-key=token_routing]').click();
  assert.ok(!(await bars()).includes('token_routing'));
  await page.locator('#parts-kind').selectOption('prefill');
  assert.ok((await bars()).includes('experts'));

  // The chart is saved with a legend, the points with all numbers.
  const svg = String(await saved(page, '#save-svg'));
  for (const name of names) assert.ok(svg.includes(name), `${name} in the saved picture`);
  assert.match(String((await saved(page, '#save-png')).subarray(1, 4)), /PNG/);
  const rows = String(await saved(page, '#save-csv')).trim().split('\n');
  assert.deepEqual(rows.slice(1).map(row => row.split(',')[0]), await page.evaluate(() => data.points.map(p => p.id)));

  // Heat maps: two points, activated experts and tokens of 4 layers on 8 GPUs, one scale.
  await page.locator('#loads-box > summary').click();
  await page.waitForFunction(() => document.querySelector('#load-tokens-1 svg'));
  for (const id of ['load-activated-0', 'load-activated-1', 'load-tokens-0', 'load-tokens-1']) {
    const cells = await page.evaluate(id => echarts.getInstanceByDom(document.getElementById(id)).getOption().series[0].data.length, id);
    assert.equal(cells, 32);
  }
  await page.locator('#load-tokens-1').scrollIntoViewIfNeeded();
  const map = await page.locator('#load-tokens-1').boundingBox();
  const cell = await page.evaluate(() => echarts.getInstanceByDom(document.getElementById('load-tokens-1')).convertToPixel({ seriesIndex: 0 }, [2, 5]));
  await page.mouse.move(map.x + cell[0] - 5, map.y + cell[1]);
  await page.mouse.move(map.x + cell[0], map.y + cell[1], { steps: 3 });
  const map_tip = tooltip_in(page, '#load-tokens-1', 'layer 2, GPU 5');
  await map_tip.waitFor({ state: 'visible', timeout: 60000 });

  // The table sorts; the point that failed says why, its markup shown as text.
  await page.locator('#all-box > summary').click();
  await page.locator('#unfinished > summary').click();
  await page.locator('#points-table thead button').nth(3).click();
  const column = await page.locator('#points-table tbody tr td:nth-child(5)').allInnerTexts();
  assert.equal(column.length, 24);
  assert.deepEqual(column, [...column].sort((a, b) => a - b));
  assert.match(await page.locator('#unfinished').innerText(), /Without a result: 1[^]*<img src=x onerror=/);
  assert.equal(await page.locator('img').count(), 0);
  assert.deepEqual(complaints, []);

  const wide = await open(1440);
  await check_brevity(wide.page, 'a sweep');

  // A phone, the dark, and paper.
  const phone = await open(390, { hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
  assert.ok(await fits(phone.page), 'wider than a phone');
  await phone.page.screenshot({ path: path.join(folder, 'report-390.png'), fullPage: true });
  const spot = await chart_at(phone.page, 3, -1);
  await phone.page.touchscreen.tap(spot.x, spot.y);
  await phone.page.waitForFunction(id => location.hash === `#${id}`, spot.id);
  assert.deepEqual(phone.complaints, []);
  const dark = await open(1280, { colorScheme: 'dark' });
  assert.equal(await dark.page.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(18, 22, 27)');
  await dark.page.emulateMedia({ media: 'print' });
  assert.equal(await dark.page.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(255, 255, 255)');
  await dark.page.setViewportSize({ width: 688, height: 900 });  // A4 between its margins
  await dark.page.waitForFunction(() => document.querySelector('#frontier-chart svg').getBoundingClientRect().width <= 688);
  assert.ok(await fits(dark.page), 'wider than paper');
  await dark.page.screenshot({ path: path.join(folder, 'report-print.png'), fullPage: true });
  assert.deepEqual(dark.complaints, []);

  // Points with several EP groups say what each did, those with pools which pool a breakdown is of.
  const fleet = await open(390, { isMobile: true }, pools);
  const rows_of = async instances => {
    await fleet.page.evaluate(rows => select(data.points.find(p => p.instances.length === rows.length && has_pools(p) === rows.pools)), instances);
    await fleet.page.evaluate(() => document.querySelectorAll('#instances').forEach(box => { box.open = true; }));
    return fleet.page.locator('#instances tbody tr').allInnerTexts();
  };
  assert.equal((await rows_of({ length: 0, pools: false })).length, 0);
  assert.equal((await rows_of({ length: 2, pools: false })).length, 2);
  assert.match((await rows_of({ length: 2, pools: true })).join('\n'), /^prefill\s+0[^]*\ndecode\s+1/);
  assert.match(await fleet.page.locator('#parts-note').innerText(), /decode pool/);
  await fleet.page.locator('#parts-kind').selectOption('prefill pool: prefill');
  assert.ok(await fits(fleet.page), 'the table of groups is wider than a phone');
  await fleet.page.screenshot({ path: path.join(folder, 'pools-390.png'), fullPage: true });
  assert.deepEqual(fleet.complaints, []);
  const two_kinds = await open(1440, {}, pools);
  const { legends, bars: layouts } = await check_brevity(two_kinds.page, 'pools');
  assert.ok(legends.flat().some(name => /no pools/.test(name)) && layouts.some(name => /(^|· )pools/.test(name)), legends.flat().join('; '));

  // The page of a plan: its layouts by name, their commands, and how many requests keep the limits under which load.
  const answer = await open(1440, {}, plan);
  const { legends: [layout_names], bars: loads } = await check_brevity(answer.page, 'a plan');
  await answer.page.screenshot({ path: path.join(folder, 'plan-1440.png'), fullPage: true });
  const table = await answer.page.evaluate(() => [...document.querySelectorAll('#answer-table td.name')].map(cell => cell.firstChild.nextSibling.textContent));
  assert.deepEqual(layout_names, table);
  assert.ok(table.some(name => /prefill .*, decode /.test(name)), table.join('; '));
  assert.equal(loads.length, table.length);
  assert.match(await answer.page.locator('#result').innerText(), /^[\d.]+ req\/s: /);
  const commands = await answer.page.locator('#answer-table pre').allTextContents();
  assert.equal(commands.length, table.length);
  assert.equal(new Set(commands).size, commands.length);
  for (const command of commands) assert.match(command, /vllm serve .*[^]*vllm bench serve /);
  // Of one layout more load meets the limits for fewer; the answer's load is asked for and met.
  const lines = await answer.page.evaluate(() => echarts.getInstanceByDom(document.getElementById('frontier-chart')).getOption().series
    .filter(s => s.type === 'line').map(s => s.data.map(d => d.value)));
  assert.equal(lines.length, table.length);
  for (const line of lines) {
    assert.ok(line.length > 1 && line.some(([, met]) => met >= .9) && line.some(([, met]) => met < .9), JSON.stringify(line));
    const met = [...line].sort((a, b) => a[0] - b[0]).map(([, share]) => share);
    assert.deepEqual(met, [...met].sort((a, b) => b - a));
  }
  assert.ok(await fits(answer.page), 'wider than the window at 1440');
  assert.deepEqual(answer.complaints, []);
  const small = await open(390, { isMobile: true, hasTouch: true }, plan);
  assert.ok(await fits(small.page), 'the plan is wider than a phone');
  await small.page.screenshot({ path: path.join(folder, 'plan-390.png'), fullPage: true });
  console.log('the page works');
} finally {
  await browser.close();
}
