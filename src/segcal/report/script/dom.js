'use strict';
// Elements, numbers in words, and the one tooltip. Text is only ever set as text: no name can become markup.

const DATA = JSON.parse(document.getElementById('data').textContent);
const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}
const node = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const known = value => value !== null && value !== undefined;
const fixed = (value, digits) => known(value) ? value.toFixed(digits) : '–';
const percent = (value, digits = 2) => known(value) ? (100 * value).toFixed(digits) : '–';
const inUnit = (metric, value) => DATA.metrics[metric].percent ? percent(value, DATA.metrics[metric].digits) : fixed(value, DATA.metrics[metric].digits);
const unitOf = metric => DATA.metrics[metric].percent ? ' %' : '';
const sum = values => values.reduce((total, value) => total + value, 0);
const whole = value => value.toLocaleString('en-US');

// Colours come with the data, so that page and figures agree; dashes and shapes tell apart those that repeat.
const DASHES = ['', '5 3', '2 2', '8 3 2 3'];
const SHAPES = ['circle', 'square', 'diamond', 'triangle'];
function styleOf(method) {
  const k = method === DATA.baseline ? -1 : DATA.methods.filter(name => name !== DATA.baseline).indexOf(method);
  return { colour: DATA.colours[method], dash: DASHES[Math.floor(Math.max(k, 0) / 7) % 4], shape: SHAPES[(k + 1) % 4] };
}
const key = method => node('span', { class: 'key', style: `background:${styleOf(method).colour}` });

const tip = document.getElementById('tip');
function showTip(x, y, title, rows) {
  tip.replaceChildren(node('b', null, title), ...rows.map(([name, value]) =>
    node('div', null, node('span', null, name), node('span', null, value))));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener('scroll', hideTip, { passive: true });

// A chart with its downloads, and values for the mouse and the keyboard: a chart is one stop, and the arrow keys go from
// mark to mark. A mark is {element, title, rows: [[name, value]]}.
function explain(chart, marks) {
  let lit = -1;
  const light = (k, x, y) => {
    if (lit >= 0) marks[lit].element.classList.remove('lit');
    lit = k;
    marks[k].element.classList.add('lit');
    showTip(x, y, marks[k].title, marks[k].rows);
  };
  const dim = () => { if (lit >= 0) marks[lit].element.classList.remove('lit'); lit = -1; hideTip(); };
  marks.forEach((mark, k) => {
    mark.element.addEventListener('pointermove', event => light(k, event.clientX, event.clientY));
    mark.element.addEventListener('pointerleave', dim);
  });
  if (!marks.length) return figure(chart, marks);
  chart.setAttribute('tabindex', '0');
  const at = k => { const box = marks[k].element.getBoundingClientRect(); light(k, box.left + box.width / 2, box.top + box.height / 2); };
  chart.addEventListener('focus', () => { if (chart.matches(':focus-visible')) at(0); });
  chart.addEventListener('blur', dim);
  chart.addEventListener('keydown', event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === 'Escape') dim();
    if (!step) return;
    event.preventDefault();
    at((Math.max(lit, 0) + (lit < 0 ? 0 : step) + marks.length) % marks.length);
  });
  return figure(chart, marks);
}

// A row of buttons of which one is pressed.
function choice(label, options, chosen, changed) {
  const buttons = options.map(([value, text]) => node('button', {
    type: 'button', 'data-value': value, 'aria-pressed': String(value === chosen),
    onclick: () => { buttons.forEach(b => b.setAttribute('aria-pressed', String(b.dataset.value === value))); changed(value); },
  }, text));
  return node('div', { class: 'choice', role: 'group', 'aria-label': label }, node('span', null, label), node('div', null, buttons));
}
function selection(label, options, chosen, changed) {
  const box = node('select', { onchange: event => changed(event.target.value) },
    options.map(([value, text]) => node('option', { value, selected: value === chosen }, text)));
  return node('label', null, label, box);
}
// Opens a section that is folded, before the page goes there.
function reveal(id) {
  const folded = document.getElementById(id)?.querySelector(':scope > details.folded');
  if (folded) folded.open = true;
}
// Controls that change one state, above a place in which `render(state)` is drawn again with each change. A control is
// [choice or selection, label, name in the state, options as [value, words]].
function live(kind, state, controls, render) {
  const holder = node('div', { class: kind }), draw = () => holder.replaceChildren(...[render(state)].flat());
  draw();
  return [node('div', { class: 'controls' }, controls.map(([make, label, name, options]) =>
    make(label, options, state[name], value => { state[name] = value; draw(); }))), holder];
}
const byRegion = (names, make = choice) => [make, 'Region', 'region', names.map(region => [region, regionName(region)])];
const byMetric = (names, make = selection) => [make, 'Metric', 'metric', names.map(metric => [metric, metrics[metric].title])];
const section = (id, title, lead, ...children) =>
  node('section', { id }, node('h2', null, title), lead ? node('p', { class: 'lead' }, lead) : null, ...children);

// What several sections read.
const { methods, baseline, metrics = {}, regions } = DATA;
const regionName = region => DATA.region_names[region] || region;
const curveRegions = regions.filter(region => DATA.curves[baseline]?.[region]);
const legend = () => node('ul', { class: 'legend' }, methods.map(method => node('li', null, key(method), method)));
// Over 'images' or 'pixels'; best and beaten are marks of the table.
function averageOf(over, method, region, metric) {
  const [value, low, high, std, floor, best, beaten] = DATA.averages[over][method]?.[region]?.[metric] || [];
  return { value, low, high, std, floor, best, beaten };
}
const pooledAt = (method, region, metric) => averageOf('pixels', method, region, metric);
const samples = (method, region, metric) => DATA.values[method]?.[region]?.[metric] || [];
const interval = (metric, { low, high }) => known(low) ? `[${inUnit(metric, low)}, ${inUnit(metric, high)}]` : '';

// Every section adds itself here; the page builds those that have content, in their order.
const SECTIONS = {};
const addSection = (name, title, build) => { SECTIONS[name] = { title, build }; };
