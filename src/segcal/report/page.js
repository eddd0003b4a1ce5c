// The page, from top to bottom.

const { methods, baseline, metrics, regions } = DATA;
const main = document.getElementById('main');
const regionName = region => DATA.region_names[region] || region;
const curveRegions = regions.filter(region => DATA.curves[baseline] && DATA.curves[baseline][region]);
const legend = () => node('ul', { class: 'legend' }, methods.map(method => node('li', null, key(method), method)));
const pooledAt = (method, region, metric) => (((DATA.pooled[method] || {})[region] || {})[metric]) || [null, null, null];
const floorAt = (method, region, metric) => DATA.floor ? mean(((DATA.floor[method] || {})[region] || {})[metric] || []) : null;
const samples = (method, region, metric) => ((DATA.values[method] || {})[region] || {})[metric] || [];

function summary() {
  const [first, ...more] = DATA.headline;
  const shown = ['all', 'boundary', 'local-max'].filter(region => regions.includes(region));
  const cards = shown.map(region => {
    const rows = methods.map(method => {
      const [value, low, high] = pooledAt(method, region, 'ece');
      if (known(value)) return { method, value, low, high, floor: (DATA.pooled_floor[method] || {})[region] };
      const [average, least, most] = (DATA.means[method] || {})[region] || [null, null, null];
      return { method, value: average, low: least, high: most, floor: floorAt(method, region, 'ece') };
    });
    return node('div', { class: 'card' }, node('h3', { class: 'head' }, `ECE, ${regionName(region)}`,
      node('span', null, region === 'local-max' ? 'mean over images, %' : 'all pixels together, %')),
      forest(rows, (value, tick) => percent(value, tick && 100 * value % 1 < 1e-9 ? 0 : tick ? 1 : 2), `ECE, ${regionName(region)}`));
  });
  const part = node('section', { id: 'summary' }, node('ul', { class: 'facts' }, DATA.facts.map(fact => node('li', null, fact))),
    node('h1', null, first), ...more.map(sentence => node('p', { class: 'more' }, sentence)),
    DATA.warnings.length ? node('div', { class: 'warning' }, DATA.warnings.map(warning => node('div', null, warning))) : null,
    node('div', { class: 'grid thirds', style: 'margin-top:1.6rem' }, cards),
    node('p', { class: 'note' }, `Bars: 95 % bootstrap intervals over ${DATA.units}.${DATA.floor ? ' Dashed green: what the method would score on the same pixels if its probabilities were exactly right.' : ''}`));
  return part;
}

function tableSection() {
  const holder = node('div', { class: 'card' }), note = node('p', { class: 'note' });
  const state = { metric: 'ece', over: 'images' };
  const cell = (method, region, metric) => {
    if (state.over === 'pixels') {
      const [value, low, high] = pooledAt(method, region, metric);
      return known(value) ? { value, side: known(low) ? `[${inUnit(metric, low)}, ${inUnit(metric, high)}]` : '' } : null;
    }
    const found = ((DATA.table[method] || {})[region] || {})[metric];
    return found ? { value: found[0], side: `(${inUnit(metric, found[1])})`, best: found[2], beaten: found[3] } : null;
  };
  function render() {
    const shown = state.metric === 'quality' ? DATA.quality : state.metric === 'every' ? DATA.calibration : [state.metric];
    const columns = shown.flatMap(metric => (DATA.quality.includes(metric) ? ['all'] : regions)
      .filter(region => methods.some(method => cell(method, region, metric))).map(region => ({ metric, region })));
    const made = columns.map(({ metric, region }) => {
      const values = methods.map(method => (cell(method, region, metric) || {}).value).filter(known), most = Math.max(...values, 1e-12);
      const arrow = metrics[metric].higher ? '↑' : '↓', unit = metrics[metric].percent ? ' %' : '';
      const head = DATA.quality.includes(metric) ? '' : `\n${regionName(region)}`;
      return {
        title: `${metrics[metric].title}${unit} ${arrow}${head}`,
        of: row => (row.cell || cell)(row.method, region, metric)?.value,
        show: row => {
          const found = (row.cell || cell)(row.method, region, metric);
          if (!found || !known(found.value)) return node('td', null, '–');
          return node('td', { class: found.best ? 'best' : null }, inUnit(metric, found.value), node('span', { class: 'side' }, found.side || ''),
            state.over === 'images' ? node('span', { class: 'mark' }, found.beaten ? '*' : '') : null,
            metrics[metric].higher || row.cell ? null : node('span', { class: 'meter', style: `width:${(100 * found.value / most).toFixed(1)}%` }));
        },
      };
    });
    const pinned = DATA.floor && state.metric !== 'quality' ? [{ method: `floor of ${DATA.best}`, key: false, cell: (_, region, metric) => ({
      value: state.over === 'images' ? floorAt(DATA.best, region, metric) : metric === 'ece' ? (DATA.pooled_floor[DATA.best] || {})[region] : null }) }] : [];
    holder.replaceChildren(sortable([methodColumn, ...made], methods.map(method => ({ method })), { pinned }));
    note.textContent = state.over === 'images'
      ? `Mean (standard deviation) over images, Local-Avg over patches. Bold: best. * ${DATA.best} is significantly better (Wilcoxon on pairs of images, Benjamini-Hochberg at 0.05).`
      : `All pixels of all images together, with 95 % bootstrap intervals over ${DATA.units}. Patches are not pooled.`;
  }
  const names = [...DATA.calibration.map(metric => [metric, metrics[metric].title]), ['every', 'All four'], ['quality', 'Quality']];
  const controls = node('div', { class: 'controls' },
    choice('Metric', names, state.metric, value => { state.metric = value; render(); }),
    choice('Over', [['images', 'images'], ['pixels', 'pixels']], state.over, value => { state.over = value; render(); }));
  render();
  return section('table', 'Every method, every region', 'Calibration errors by region. Press a heading to sort.', controls, holder, note, classTableCard());
}

function classTableCard() {
  if (!curveRegions.length) return null;
  const holder = node('div', { class: 'card' });
  function render(region) {
    const total = readCurve(DATA.curves[baseline][region]['']).total || 1;
    const rows = DATA.classes.map(label => ({ label, share: readCurve(DATA.curves[baseline][region][label] || []).total / total }));
    const columns = [
      { title: 'Predicted class', of: row => row.label, show: row => row.label },
      { title: 'Share of pixels %', of: row => row.share, show: row => percent(row.share, 1) },
      ...methods.map(method => {
        const read = row => readCurve(DATA.curves[method][region][row.label] || []);
        return { title: method, of: row => read(row).ece, show: row => {
          const { ece, confidence, accuracy } = read(row), side = known(ece) ? `${confidence > accuracy ? '+' : '−'}` : '';
          return node('td', null, percent(ece), node('span', { class: 'side', style: `color:var(--${confidence > accuracy ? 'over' : 'under'})`, title: confidence > accuracy ? 'overconfident' : 'underconfident' }, side));
        } };
      })];
    holder.replaceChildren(node('div', { class: 'tall' }, sortable(columns, rows)));
  }
  render(curveRegions[0]);
  return node('div', { id: 'classes' }, node('h3', null, 'By class: ECE % of the pixels predicted as it'),
    node('div', { class: 'controls' }, choice('Region', curveRegions.map(region => [region, regionName(region)]), curveRegions[0], render)), holder,
    node('p', { class: 'note' }, '+ overconfident on the whole, − underconfident.'));
}

function reliabilitySection() {
  if (!curveRegions.length) return null;
  const holder = node('div', { class: 'diagrams' }), state = { region: curveRegions[0], label: '' };
  function render() {
    holder.replaceChildren(...methods.map(method => {
      const curve = DATA.curves[method][state.region][state.label], read = readCurve(curve);
      const floor = state.label === '' ? (DATA.pooled_floor[method] || {})[state.region] : null;
      return node('div', { class: 'card diagram' }, node('h4', null, key(method), method, node('span', null, `ECE ${percent(read.ece)} %`)),
        node('p', null, known(read.ece) ? `says ${fixed(read.confidence, 3)}, is right ${fixed(read.accuracy, 3)}${known(floor) ? `; floor ${percent(floor)} %` : ''}` : 'no pixels'), reliability(curve, method));
    }));
  }
  render();
  const swatch = (kind, words) => node('li', null, node('span', { class: 'swatch', style: `background:${kind}` }), words);
  return section('reliability', 'Reliability diagrams', 'When the network says 0.9, is it right nine times in ten? Bars show how often it is right at each confidence; on the dashed line it keeps its word. Below, how many pixels have that confidence.',
    node('div', { class: 'controls' }, choice('Region', curveRegions.map(region => [region, regionName(region)]), state.region, value => { state.region = value; render(); }),
      selection('Class', [['', 'all pixels'], ...DATA.classes.map(label => [label, label])], value => { state.label = value; render(); })),
    node('ul', { class: 'legend' }, swatch('color-mix(in srgb, var(--over) 38%, transparent)', 'overconfident'), swatch('color-mix(in srgb, var(--under) 38%, transparent)', 'underconfident'),
      node('li', null, 'dot: mean confidence and accuracy of a bin, with its 95 % interval')), holder);
}

let openCase = () => {};
function casesSection() {
  if (!DATA.portraits.length) return null;
  const holder = node('div'), chips = node('div', { class: 'chips' });
  let turn = 0;
  async function open(k) {
    const portrait = DATA.portraits[k], mine = ++turn;
    [...chips.children].forEach((chip, j) => chip.setAttribute('aria-pressed', String(j === k)));
    const bytes = await Promise.all(portrait.layers.map(layer => bytesOf(layer, portrait)));
    if (mine === turn) holder.replaceChildren(...caseParts(portrait, bytes));
  }
  DATA.portraits.forEach((portrait, k) => chips.append(node('button', { type: 'button', 'aria-pressed': 'false', onclick: () => open(k) }, portrait.name, node('small', null, portrait.why))));
  open(0);
  openCase = name => {
    const k = DATA.portraits.findIndex(portrait => portrait.name === name);
    if (k >= 0) { open(k); document.getElementById('cases').scrollIntoView(); }
  };
  return section('cases', 'Cases', `${DATA.portraits.some(portrait => portrait.why === 'named') ? 'Those asked for.' : `Chosen by the worst patch of ${baseline}.`} Point at a picture: every map tells its value at that pixel.`, chips, holder);
}

function caseParts(portrait, bytes) {
  const view = new CaseView(portrait), layers = portrait.layers.map((layer, k) => ({ ...layer, bytes: bytes[k] }));
  const find = (kind, method = '') => layers.find(layer => layer.kind === kind && layer.method === method);
  const className = k => k === DATA.nothing ? 'ignored' : portrait.classes[k] ?? 'other', table = classTable(portrait.classes);
  const image = find('image'), truth = find('truth');
  const wrong = predicted => ({ values: predicted.bytes.values.map((c, k) => truth.bytes.values[k] === DATA.nothing ? DATA.nothing : Number(c !== truth.bytes.values[k])) });
  const tellError = value => value === DATA.nothing ? 'ignored' : value ? 'wrong' : 'right';
  const top = [];
  if (image) top.push(view.frame('image', image.bytes, greyTable(), null, true));
  top.push(view.frame('truth', truth.bytes, table, className, !image));
  for (const predicted of layers.filter(layer => layer.kind === 'prediction')) {
    const suffix = predicted.method ? ` (${predicted.method})` : '';
    top.push(view.frame(`prediction${suffix}`, predicted.bytes, table, className), view.frame(`error${suffix}`, wrong(predicted), errorTable(), tellError));
  }
  const sample = kind => layers.find(layer => layer.kind === kind), heat = sample('temperature'), gap = sample('gap'), sure = sample('confidence');
  const signed = value => `${value > 0 ? '+' : ''}${value.toFixed(2)}`;
  const grid = [node('h4', { class: 'corner' }), ramp('confidence', sure, [sure.low.toFixed(2), '1']),
    heat ? ramp('temperature', heat, [`${heat.low.toFixed(2)} sharper`, '1', `${heat.high.toFixed(2)} softer`]) : node('div'),
    ramp('local gap', gap, [`${signed(gap.low)} under`, '0', `${signed(gap.high)} over`])];
  for (const method of methods) {
    grid.push(node('h4', null, key(method), method));
    for (const kind of ['confidence', 'temperature', 'gap']) {
      const layer = find(kind, method);
      grid.push(layer ? view.frame('', layer.bytes, rampTable(kind), level => shownValue(kind, valueOf(layer, level)), kind === 'gap')
        : node('div', { class: 'none' }, 'no temperature'));
    }
  }
  const parts = [];
  if (portrait.slices.length > 1) {
    const label = node('output', { class: 'slice' });
    const told = () => { label.textContent = `slice ${portrait.slices[view.slice]} of ${portrait.shape[0]}`; };
    parts.push(node('div', { class: 'slider' }, node('input', { type: 'range', min: 0, max: portrait.slices.length - 1, value: view.slice, 'aria-label': 'slice',
      oninput: event => { view.slice = Number(event.target.value); told(); view.show(); } }), label));
    told();
  }
  const present = portrait.classes.length <= 24 ? node('ul', { class: 'legend', style: 'margin-top:.8rem' }, portrait.classes.map((name, k) =>
    node('li', null, node('span', { class: 'swatch', style: `background:rgb(${classColour(k)})` }), name))) : null;
  parts.push(node('div', { class: 'card' }, node('div', { class: 'maps four' }, top), present));
  parts.push(node('h3', null, 'What each method makes of it'), node('div', { class: 'card' }, node('div', { class: 'maps three' }, grid),
    node('p', { class: 'note' }, `Local gap: mean confidence minus accuracy in a window of ${portrait.window} pixels a side. Orange temperatures soften the scores, purple ones sharpen them.`)));
  parts.push(...localParts(portrait));
  view.show();
  return parts;
}

// The paper's Fig. 2: the reliability of the whole image and of three patches, for each method.
function localParts(portrait) {
  const rows = [['whole image', portrait.curves], ...portrait.patches.map((patch, k) => [`patch ${k + 1}`, patch.curves])];
  const grid = node('div', { class: 'locals', style: `grid-template-columns:4.6rem repeat(${methods.length}, minmax(7rem, 15rem))` },
    node('b'), methods.map(method => node('b', null, key(method), method)),
    rows.map(([title, curves], k) => [node('div', null, title), methods.map(method => node('div', { class: 'mini' }, reliability(curves[method], `${method}, ${title}`, true),
      `ECE ${percent(readCurve(curves[method]).ece, 1)} %`))]).flat(2));
  return [node('h3', null, 'Global and local reliability'), node('div', { class: 'card scroll' }, grid),
    node('p', { class: 'note' }, `Patches with the largest, the middle and the least ECE of ${baseline}, drawn on the image. A method can be calibrated over the image and wrong everywhere in it.`)];
}

// What a method that chooses has tried, and what it took.
function choiceSection() {
  if (!DATA.choices.length) return null;
  const difference = row => known(row.difference) ? node('td', null, `${row.difference > 0 ? '+' : ''}${fixed(row.difference, 4)}`.replace('-', '−'),
    node('span', { class: 'side' }, row.difference_error ? `± ${fixed(row.difference_error, 4)}` : '')) : '–';
  const card = found => node('div', { class: 'card' }, node('h3', { class: 'head' }, key(found.method), found.method, node('span', null, `took ${found.chosen}`)),
    node('p', null, `${found.why}.`), !found.rows.length ? null : sortable([
      { title: 'Candidate', of: row => row.name, show: row => node('td', { class: row.name === found.chosen ? 'best' : null }, row.name) },
      { title: 'Held-out NLL', of: row => row.nll, show: row => known(row.nll) ? node('td', null, fixed(row.nll, 4), node('span', { class: 'side' }, `± ${fixed(row.error, 4)}`)) : '–' },
      { title: 'Difference to ts', of: row => row.difference, show: difference },
      { title: 'Learned numbers', of: row => row.numbers, show: row => known(row.numbers) ? whole(row.numbers) : '–' },
      { title: 'Seconds', of: row => row.seconds, show: row => fixed(row.seconds, 1) }], found.rows),
    found.rows.filter(row => row.note).map(row => node('p', { class: 'note' }, `${row.name}: ${row.note}.`)));
  return section('choice', 'How the method was chosen', 'Every candidate is fitted on some groups of images and scored on the others. ± is one standard error over groups; differences are paired.',
    DATA.choices.map(card));
}

function influenceSection() {
  if (!DATA.influences.length) return null;
  const part = found => node('div', null, node('h3', null, key(found.method), found.method), 
    node('div', { class: 'grid halves kept' },
      found.features.length ? node('div', { class: 'card' }, node('h3', { class: 'head' }, 'What is around the pixel', node('span', null, 'factor for one standard deviation more')), factors(found.features, `${found.method}: factors of the features`)) : null,
      found.classes.length ? node('div', { class: 'card' }, node('h3', { class: 'head' }, 'The class predicted', node('span', null, 'factor of its own')), node('div', { class: 'tall' }, factors(found.classes, `${found.method}: factors of the classes`))) : null),
    found.words.length ? node('details', { open: found.words.length < 16 }, node('summary', null, 'In words'), node('ul', { class: 'words' }, found.words.map(words => node('li', null, words)))) : null);
  return section('influence', 'What raises and lowers the temperature', 'Factors on the temperature with 95 % intervals from refits that leave out groups of images; grey where the interval holds 1. A higher temperature makes scores more modest, a lower one surer, down to the floor.',
    DATA.influences.map(part));
}

function worstSection() {
  const portrayed = new Set(DATA.portraits.map(portrait => portrait.name));
  const named = name => portrayed.has(name) ? node('button', { type: 'button', class: 'link', onclick: () => openCase(name), title: name }, name) : node('span', { title: name }, name);
  const local = regions.includes('local-max') ? 'local-max' : 'all';
  const images = node('div', { class: 'card' }), state = { metric: 'ece', region: local };
  function render() {
    const rows = DATA.cases.map((name, k) => ({ name, values: methods.map(method => samples(method, state.region, state.metric)[k]) }));
    const at = methods.indexOf(baseline);
    const columns = [{ title: 'Image', of: row => row.name, show: row => node('td', null, named(row.name)) },
      ...methods.map((method, k) => ({ title: method, of: row => row.values[k], show: row => inUnit(state.metric, row.values[k]) }))];
    images.replaceChildren(node('div', { class: 'tall' }, sortable(columns, rows, { sorted: 1 + at, descending: !metrics[state.metric].higher })));
  }
  render();
  const patches = !DATA.patches.length ? null : node('div', null, node('h3', null, 'Worst patches, ECE %'), node('div', { class: 'card' }, node('div', { class: 'tall' }, sortable([
    { title: 'Image', of: row => row.case, show: row => node('td', null, named(row.case)) }, { title: 'Patch', of: row => row.patch, show: row => String(row.patch) },
    { title: 'Corner', of: row => row.origin, show: row => row.origin },
    ...methods.map((method, k) => ({ title: method, of: row => row.values[k], show: row => percent(row.values[k]) }))], DATA.patches, { sorted: 3 + methods.indexOf(baseline), descending: true }))));
  return section('worst', 'Worst images and patches', 'Where to look first. Underlined images are shown above.',
    node('div', { class: 'controls' }, choice('Region', regions.map(region => [region, regionName(region)]), state.region, value => { state.region = value; render(); }),
      selection('Metric', Object.keys(metrics).map(metric => [metric, metrics[metric].title]), value => { state.metric = value; render(); })), images, patches);
}

function sizeSection() {
  if (!DATA.sizes) return null;
  const holder = node('div', { class: 'grid halves' });
  function render(metric) {
    const unit = metrics[metric].percent ? ' (%)' : '';
    holder.replaceChildren(...Object.keys(DATA.sizes).map(region => node('div', { class: 'card' }, node('h3', { class: 'head' }, regionName(region)), legend(),
      lines(methods.map(method => ({ method, points: DATA.sizes[region][metric][method] })), metric, 'patch size (pixels)', `${metrics[metric].title}${unit}`))));
  }
  render('ece');
  return section('sizes', 'Patch size', 'The smaller the patch, the less its errors can cancel: what is right on average may be wrong everywhere. Mean over images.',
    node('div', { class: 'controls' }, choice('Metric', DATA.calibration.map(metric => [metric, metrics[metric].title]), 'ece', render)), holder);
}

function likelihoodSection() {
  const rows = methods.map(method => ({ method, nll: pooledAt(method, 'all', 'nll')[0], entropy: pooledAt(method, 'all', 'entropy')[0] })).filter(row => known(row.nll));
  if (!rows.length) return null;
  const points = methods.flatMap(method => samples(method, 'all', 'nll').map((y, k) => ({ method, name: DATA.cases[k], y, x: samples(method, 'all', 'entropy')[k] })).filter(p => known(p.x) && known(p.y)));
  const holder = node('div'), hidden = new Set();
  const render = () => holder.replaceChildren(scatter(points, hidden));
  const toggles = node('ul', { class: 'legend' }, methods.map(method => node('li', null, node('button', { type: 'button', 'aria-pressed': 'true', onclick: event => {
    hidden.has(method) ? hidden.delete(method) : hidden.add(method);
    event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(method)));
    render();
  } }, key(method), method))));
  render();
  const number = (title, of) => ({ title, of, show: row => fixed(of(row), 4) });
  const table = sortable([methodColumn, number('NLL', row => row.nll), number('Entropy', row => row.entropy), number('NLL − entropy', row => row.nll - row.entropy)], rows);
  return section('likelihood', 'NLL and entropy', 'Where the mean NLL equals the mean entropy, one temperature can do no more. Above the diagonal the scores are overconfident, below it underconfident; a method that follows the image brings every image to the line.',
    node('div', { class: 'grid halves' },
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'All pixels together'), node('p', { class: 'note', style: 'margin:0 0 .4rem' }, '● NLL   ○ entropy, in nats'), dumbbells(rows), table),
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Each image'), toggles, holder)));
}

function trustSection() {
  const own = (title, metric, format) => ({ title, of: row => pooledAt(row.method, 'all', metric)[0], show: row => format(pooledAt(row.method, 'all', metric)[0]) });
  const columns = [own('ECE %', 'ece', percent), own('debiased', 'ece-debiased', percent), own('smooth', 'ece-smooth', percent),
    own('NLL\ncalibration', 'nll-calibration', value => fixed(value, 4)), own('NLL\nrefinement', 'nll-refinement', value => fixed(value, 4)),
    own('Brier\ncalibration', 'brier-calibration', value => fixed(value, 4)), own('Brier\nrefinement', 'brier-refinement', value => fixed(value, 4))]
    .filter(column => methods.some(method => known(column.of({ method }))));
  const table = node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Other readings of the same pixels'), sortable([methodColumn, ...columns], methods.map(method => ({ method }))),
    node('p', { class: 'note' }, 'Debiased: less what the finite number of pixels in a bin adds. Smooth: with a kernel instead of bins. NLL and Brier are the sum of what calibration could still mend and what it could not.'));
  const chart = DATA.bins ? node('div', { class: 'card' }, node('h3', { class: 'head' }, 'ECE against the number of bins'), legend(),
    lines(methods.map(method => ({ method, points: DATA.bins[method] })), 'ece', 'bins', 'ECE (%)')) : null;
  const bias = value => { const shown = percent(value, 1); return Number(shown) === 0 ? '0.0' : (value > 0 ? '+' : '') + shown.replace('-', '−'); };
  const volumes = !DATA.volumes ? null : node('div', { class: 'card', id: 'volumes' }, node('h3', { class: 'head' }, 'Volume bias by class, %'), node('div', { class: 'tall' }, sortable([
    { title: 'Class', of: row => row, show: row => row },
    ...methods.map(method => ({ title: method, of: row => (DATA.volumes[row][method] || [])[0], show: row => {
      const [value, low, high] = DATA.volumes[row][method] || [null, null, null];
      return known(value) ? node('td', null, bias(value), node('span', { class: 'side' }, known(low) ? `[${bias(low)}, ${bias(high)}]` : '')) : '–';
    } }))], Object.keys(DATA.volumes))),
    node('p', { class: 'note' }, 'Summed probability of a class against its true volume: calibrated probabilities give the right volume on average.'));
  return section('trust', 'Do other readings agree?', 'A calibration error depends on how it is read. These do not share its bins.',
    table, node('div', { class: 'grid halves', style: 'margin-top:1rem' }, chart, volumes));
}

function howSection() {
  const pairs = entries => node('dl', null, entries.flatMap(([name, value]) => [node('dt', null, name), node('dd', null, value)]));
  return section('how', 'What was measured, and how', null, node('div', { class: 'grid halves' },
    node('div', { class: 'card' }, node('h3', null, 'Definitions'), pairs(DATA.definitions)),
    node('div', { class: 'card' }, node('h3', null, 'Settings'), pairs(DATA.settings))));
}

const TITLES = { summary: 'Summary', table: 'Table', reliability: 'Reliability', cases: 'Cases', choice: 'Choice', influence: 'Why', worst: 'Worst', sizes: 'Patch size', likelihood: 'NLL', trust: 'Trust', how: 'How' };
for (const build of [summary, tableSection, reliabilitySection, casesSection, choiceSection, influenceSection, worstSection, sizeSection, likelihoodSection, trustSection, howSection]) {
  const part = build();
  if (!part) continue;
  main.append(part);
  document.getElementById('nav').append(node('a', { href: `#${part.id}` }, TITLES[part.id]));
}
main.append(node('footer', null, DATA.footer));

// Dark where the system is dark, until the button says otherwise.
const dark = matchMedia('(prefers-color-scheme: dark)');
const setTheme = on => { document.documentElement.dataset.theme = on ? 'dark' : 'light'; };
setTheme(dark.matches);
dark.addEventListener('change', () => setTheme(dark.matches));
document.getElementById('theme').addEventListener('click', () => setTheme(document.documentElement.dataset.theme !== 'dark'));
