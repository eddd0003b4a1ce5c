// Maps of chosen cases (the paper's Fig. 1), and their global and local reliability (Fig. 2).
let openCase = () => {};
addSection('cases', 'Cases', ({ portraits, optimum_window: near }) => {
  const holder = node('div'), chips = node('div', { class: 'chips' });
  let turn = 0;
  async function open(k) {
    const portrait = portraits[k], mine = ++turn;
    [...chips.children].forEach((chip, j) => chip.setAttribute('aria-pressed', String(j === k)));
    const bytes = await Promise.all(portrait.layers.map(layer => bytesOf(layer, portrait)));
    if (mine === turn) holder.replaceChildren(...caseParts(portrait, bytes, near));
  }
  portraits.forEach((portrait, k) => chips.append(node('button', { type: 'button', 'aria-pressed': 'false', onclick: () => open(k) }, portrait.title, node('small', null, portrait.why))));
  open(0);
  openCase = name => {
    const k = portraits.findIndex(portrait => portrait.name === name);
    if (k >= 0) { open(k); reveal('cases'); document.getElementById('cases').scrollIntoView(); }
  };
  const chosen = portraits.some(portrait => portrait.why === 'named') ? 'The cases asked for.' : `Chosen by the ECE of ${baseline} in the worst patch.`;
  return section('cases', 'Where it goes wrong', `${chosen} Point at a picture to read every map at that pixel.`, chips, holder);
});

function caseParts(portrait, bytes, near) {
  const view = new CaseView(portrait), maps = mapsOf(portrait, bytes), parts = [];
  const map = (kind, method = '') => maps.find(one => one.kind === kind && one.method === method);
  const frame = (one, title, options) => view.frame(title, one.bytes, one.table, one.tell, { name: one.name, ...options });
  const image = map('image'), controls = [];
  if (view.volume) {
    parts.push(volumeViewer(view, maps));
    controls.push(choice('Maps below:', [0, 1, 2].map(axis => [String(axis), view.planeName(axis)]), '0', axis => { view.axis = Number(axis); view.show(); }));
  }
  if (image) {
    view.image = image.bytes;
    controls.push(node('label', null, 'Maps over the image', node('input', { type: 'range', min: 0, max: 100, value: 100, 'aria-label': 'Opacity of the maps over the image, in percent',
      oninput: event => { view.opacity = event.target.value / 100; view.show(); } })));
  }
  parts.push(node('div', { class: 'controls below' }, controls));
  const top = [map('image'), map('truth'), ...maps.filter(one => one.kind === 'prediction' || one.kind === 'error')].filter(known)
    .map((one, k) => frame(one, one.name, { boxes: k === 0 ? 'shown' : null }));
  const names = portrait.classes.length <= 24 ? node('ul', { class: 'legend below' }, portrait.classes.map((name, k) => swatch(portrait.colours[k], name))) : null;
  parts.push(node('div', { class: 'card' }, node('div', { class: 'maps four' }, top), names));
  parts.push(...locationParts(portrait, map, frame, near));
  const kinds = ['confidence', 'temperature', 'gap'], titles = ['confidence', 'temperature', 'local gap'];
  const grid = [node('h4', { class: 'corner' }), ...kinds.map((kind, k) => { const one = maps.find(found => found.kind === kind); return one ? ramp(titles[k], one) : node('div'); })];
  for (const method of methods) {
    grid.push(node('h4', null, key(method), method));
    for (const kind of kinds) grid.push(map(kind, method) ? frame(map(kind, method), '', { boxes: kind === 'gap' ? 'shown' : null }) : node('div', { class: 'none' }, 'no temperature'));
  }
  parts.push(node('h3', null, 'What each method does'), node('div', { class: 'card' }, node('div', { class: 'maps three' }, grid),
    node('p', { class: 'note' }, `Local gap: mean confidence minus accuracy in a window of ${portrait.window} pixels per side; red is overconfident, blue underconfident. Temperatures above 1 (orange) lower the confidence, those below 1 (purple) raise it.`)));
  parts.push(...localParts(portrait));
  view.show();
  return parts;
}

// Every map of the case with its colours and the words for its values.
function mapsOf(portrait, bytes) {
  const className = k => k === NOTHING ? 'ignored' : portrait.classes[k] ?? 'other', table = tableOf(portrait.colours);
  const truth = portrait.layers.findIndex(layer => layer.kind === 'truth');
  const suffix = layer => layer.method ? `, ${layer.method}` : '';
  const titles = { gap: 'local gap', accuracy: 'accuracy of the bin', optimum: 'best temperature nearby', disagreement: 'disagreement of passes', region: 'regions' };
  return portrait.layers.flatMap((layer, k) => {
    const own = { ...layer, bytes: bytes[k], name: `${titles[layer.kind] || layer.kind}${suffix(layer)}` };
    if (layer.kind === 'image') return [{ ...own, table: greyTable(), tell: null }];
    if (layer.kind === 'truth') return [{ ...own, table, tell: className }];
    if (layer.kind === 'region') return [{ ...own, table: tableOf(DATA.region_colours), tell: value => value === NOTHING ? 'ignored' : REGIONS[value] }];
    if (layer.kind !== 'prediction') return [{ ...own, table: rampTable(layer.kind), tell: level => shownValue(layer.kind, valueOf(layer, level)) }];
    const wrong = bytes[k].values.map((c, j) => bytes[truth].values[j] === NOTHING ? NOTHING : Number(c !== bytes[truth].values[j]));
    return [{ ...own, table, tell: className }, { kind: 'error', method: layer.method, name: `error${suffix(layer)}`, bytes: { values: wrong }, table: tableOf(ERROR),
      tell: value => value === NOTHING ? 'ignored' : value ? 'wrong' : 'right' }];
  });
}

// The paper's Fig. 1: what is said, how often that is right, which temperature would be right; and the regions.
function locationParts(portrait, map, frame, near) {
  const shown = [['confidence', 'confidence', null], ['accuracy', 'accuracy of its bin', null], ['optimum', 'best temperature nearby', null], ['region', 'regions, patches', 'all']]
    .map(([kind, title, boxes]) => [map(kind, kind === 'region' ? '' : baseline), title, boxes]).filter(([one]) => one);
  if (shown.length < 4) return [];
  const passes = map('disagreement');
  if (passes) shown.splice(3, 0, [passes, passes.name, null]);
  const legendOf = one => one.kind === 'region' ? node('ul', { class: 'legend below' }, REGIONS.map((name, k) => swatch(DATA.region_colours[k], name))) : ramp(null, one);
  return [node('h3', null, `What ${baseline} says, and what would be right`), node('div', { class: 'card' }, node('div', { class: `maps ${passes ? 'five' : 'four'}` }, shown.map(([one, title, boxes]) => node('div', null, frame(one, title, { boxes }), legendOf(one)))),
    node('p', { class: 'note' }, `Accuracy of its bin: how often ${baseline} is right in this case at the confidence of the pixel. Best temperature nearby: the temperature of least NLL in a window of ${near} pixels per side, found with the labels; a single temperature cannot be right everywhere. Thin boxes are the Local patches, numbered ones are shown below.`),
    passes ? node('p', { class: 'note' }, 'Disagreement of passes: mutual information between the label of a pixel and the pass that predicts it, found without the labels; 0 where all passes agree, at most the logarithm of the number of passes, with the first counted.') : null)];
}

// The paper's Fig. 2: the reliability of the whole image and of three patches, for each method.
function localParts(portrait) {
  const rows = [['whole image', portrait.curves], ...portrait.patches.map((patch, k) => [`patch ${k + 1}`, patch.curves])];
  const grid = node('div', { class: 'locals', style: `grid-template-columns:4.6rem repeat(${methods.length}, minmax(7rem, 15rem))` },
    node('b'), methods.map(method => node('b', null, key(method), method)),
    rows.map(([title, curves]) => [node('div', { class: 'name' }, title), methods.map(method => node('div', { class: 'mini' }, reliability(curves[method], `${method}, ${title}`, true),
      `ECE ${percent(readCurve(curves[method]).ece)} %`))]).flat(2));
  return [node('h3', null, 'Global and local reliability'), node('div', { class: 'card scroll' }, grid),
    node('p', { class: 'note' }, `The patches with the largest, the median and the smallest ECE of ${baseline}, drawn on the image. A method can be calibrated over the whole image and miscalibrated in every part of it.`)];
}
