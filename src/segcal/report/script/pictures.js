// Pictures of a case: grey PNGs whose bytes are looked up in a colour table, so that every pixel has its value.

const RAMPS = {
  confidence: ['#440154', '#482878', '#3e4989', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6ece58', '#b5de2b', '#fde725'],
  temperature: ['#2d004b', '#542788', '#8073ac', '#b2abd2', '#d8daeb', '#f7f7f7', '#fee0b6', '#fdb863', '#e08214', '#b35806', '#7f3b08'],
  gap: ['#053061', '#2166ac', '#4393c3', '#92c5de', '#d1e5f0', '#f7f7f7', '#fddbc7', '#f4a582', '#d6604d', '#b2182b', '#67001f'],
  disagreement: ['#000004', '#180f3d', '#440f76', '#721f81', '#9e2f7f', '#cd4071', '#f1605d', '#fd9668', '#feca8d', '#fcfdbf'],
};
RAMPS.accuracy = RAMPS.confidence;
RAMPS.optimum = RAMPS.temperature;
const { levels: LEVELS, nothing: NOTHING } = DATA.sections.cases || { levels: 100, nothing: 255 };
const EMPTY = [128, 128, 128], OTHER = 254;
const channels = colour => [1, 3, 5].map(k => parseInt(colour.slice(k, k + 2), 16));

function rampTable(kind) {
  const stops = RAMPS[kind].map(channels), table = [];
  for (let level = 0; level <= LEVELS; level++) {
    const at = level / LEVELS * (stops.length - 1), k = Math.min(Math.floor(at), stops.length - 2), share = at - k;
    table.push(stops[k].map((value, c) => Math.round(value + share * (stops[k + 1][c] - value))));
  }
  table[NOTHING] = EMPTY;
  return table;
}
// Colours by position, grey for ignored pixels and classes that are not shown.
const tableOf = colours => Object.assign(colours.map(channels), { [NOTHING]: EMPTY, [OTHER]: EMPTY });
const ERROR = ['#E4E5E0', '#1B1F24'], REGIONS = ['outside All', 'All', 'Boundary (part of All)'];
const swatch = (colour, words) => node('li', null, node('span', { class: 'swatch', style: `background:${colour}` }), words);
const greyTable = () => Array.from({ length: 256 }, (_, k) => [k, k, k]);

// The bytes of a layer; slices of a volume lie one below the other in its picture.
async function bytesOf(layer, portrait) {
  const picture = new Image();
  picture.src = layer.src;
  await picture.decode();
  const { naturalWidth: w, naturalHeight: h } = picture;
  const canvas = node('canvas', { width: w, height: h }), context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  const data = context.getImageData(0, 0, w, h).data;
  if (layer.colour) return { colour: data };
  const values = new Uint8Array(w * h);
  for (let k = 0; k < values.length; k++) values[k] = data[4 * k];
  return { values };
}

function valueOf(layer, level) {
  if (level === NOTHING) return null;
  const share = level / LEVELS, logarithmic = layer.kind === 'temperature' || layer.kind === 'optimum';
  return logarithmic ? layer.low * (layer.high / layer.low) ** share : layer.low + (layer.high - layer.low) * share;
}
const shownValue = (kind, value) => !known(value) ? '–' : kind === 'gap' ? (value > 0 ? '+' : '') + value.toFixed(2) : value.toFixed(2) + (kind === 'disagreement' ? ' nats' : '');

const signed = value => `${value > 0 ? '+' : ''}${value.toFixed(2)}`;
function ramp(title, layer) {
  const ends = { gap: [`${signed(layer.low)} under`, '0', `${signed(layer.high)} over`], confidence: [layer.low.toFixed(2), '1'], accuracy: [layer.low.toFixed(2), '1'],
    temperature: [layer.low.toFixed(2), '1', layer.high.toFixed(2)], optimum: [`≤ ${layer.low}`, '1', `≥ ${layer.high}`], disagreement: ['0', `${layer.high.toFixed(2)} nats`] }[layer.kind];
  const canvas = node('canvas', { width: LEVELS + 1, height: 1, 'aria-hidden': 'true' }), table = rampTable(layer.kind), context = canvas.getContext('2d');
  const out = context.createImageData(LEVELS + 1, 1);
  for (let k = 0; k <= LEVELS; k++) out.data.set([...table[k], 255], 4 * k);
  context.putImageData(out, 0, 0);
  return node('div', { class: 'ramp' }, title ? node('b', null, title) : null, canvas, node('div', null, ends.map(label => node('span', null, label))));
}
