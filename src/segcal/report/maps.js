// Pictures of a case: grey PNGs whose bytes are looked up in a colour table, so that a pixel can tell its value.

const RAMPS = {
  confidence: ['#440154', '#482878', '#3e4989', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6ece58', '#b5de2b', '#fde725'],
  temperature: ['#2d004b', '#542788', '#8073ac', '#b2abd2', '#d8daeb', '#f7f7f7', '#fee0b6', '#fdb863', '#e08214', '#b35806', '#7f3b08'],
  gap: ['#053061', '#2166ac', '#4393c3', '#92c5de', '#d1e5f0', '#f7f7f7', '#fddbc7', '#f4a582', '#d6604d', '#b2182b', '#67001f'],
};
const LEVELS = DATA.levels, NOTHING = DATA.nothing, EMPTY = [128, 128, 128];
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
const CLASS_COLOURS = ['#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00', '#F0E442', '#666666'];
function classColour(k) {
  if (k < CLASS_COLOURS.length) return channels(CLASS_COLOURS[k]);
  const hue = (k * 137.508) % 360, light = [0.42, 0.6, 0.75][k % 3], spread = 0.55 * Math.min(light, 1 - light);
  return [0, 8, 4].map(n => { const at = (n + hue / 30) % 12; return Math.round(255 * (light - spread * Math.max(-1, Math.min(at - 3, 9 - at, 1)))); });
}
const classTable = classes => { const table = classes.map((_, k) => classColour(k)); table[NOTHING] = EMPTY; table[254] = EMPTY; return table; };
const errorTable = () => { const table = [[228, 229, 224], [213, 94, 0]]; table[NOTHING] = EMPTY; return table; };
const greyTable = () => Array.from({ length: 256 }, (_, k) => [k, k, k]);

// The bytes of all slices of a layer, one below the other in its picture.
async function bytesOf(layer, portrait) {
  const picture = new Image();
  picture.src = layer.src;
  await picture.decode();
  const { w, h } = portrait, n = Math.max(1, portrait.slices.length);
  const canvas = node('canvas', { width: w, height: h * n }), context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  const data = context.getImageData(0, 0, w, h * n).data;
  if (layer.colour) return { colour: data };
  const values = new Uint8Array(w * h * n);
  for (let k = 0; k < values.length; k++) values[k] = data[4 * k];
  return { values };
}

function paint(canvas, bytes, table, slice) {
  const { width: w, height: h } = canvas, context = canvas.getContext('2d'), out = context.createImageData(w, h), from = slice * w * h;
  if (bytes.colour) out.data.set(bytes.colour.subarray(4 * from, 4 * (from + w * h)));
  else for (let k = 0; k < w * h; k++) {
    const colour = table[bytes.values[from + k]] || EMPTY;
    out.data[4 * k] = colour[0]; out.data[4 * k + 1] = colour[1]; out.data[4 * k + 2] = colour[2]; out.data[4 * k + 3] = 255;
  }
  context.putImageData(out, 0, 0);
}

function valueOf(layer, level) {
  if (level === NOTHING) return null;
  const share = level / LEVELS;
  return layer.kind === 'temperature' ? layer.low * (layer.high / layer.low) ** share : layer.low + (layer.high - layer.low) * share;
}
const shownValue = (kind, value) => !known(value) ? '–' : kind === 'gap' ? (value > 0 ? '+' : '') + value.toFixed(2) : value.toFixed(2);

function ramp(title, layer, labels) {
  const canvas = node('canvas', { width: LEVELS + 1, height: 1 }), table = rampTable(layer.kind), context = canvas.getContext('2d');
  const out = context.createImageData(LEVELS + 1, 1);
  for (let k = 0; k <= LEVELS; k++) out.data.set([...table[k], 255], 4 * k);
  context.putImageData(out, 0, 0);
  return node('div', { class: 'ramp' }, node('b', null, title), canvas, node('div', null, labels.map(label => node('span', null, label))));
}

// One case: all its pictures, which share the slice and the pixel pointed at.
class CaseView {
  constructor(portrait) {
    this.portrait = portrait;
    this.slice = Math.floor(portrait.slices.length / 2);
    this.frames = [];
  }

  frame(title, bytes, table, tell, boxes) {
    const { w, h } = this.portrait;
    const canvas = node('canvas', { width: w, height: h, role: 'img', 'aria-label': title });
    const overlay = draw('svg', { viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: 'none' });
    const readout = node('output');
    const frame = { canvas, bytes, table, tell, overlay, readout, boxes };
    this.frames.push(frame);
    canvas.addEventListener('pointermove', event => {
      const box = canvas.getBoundingClientRect();
      const x = Math.floor((event.clientX - box.left) / box.width * w), y = Math.floor((event.clientY - box.top) / box.height * h);
      if (x >= 0 && y >= 0 && x < w && y < h) this.point(x, y);
    });
    canvas.addEventListener('pointerleave', () => this.point(null));
    return node('figure', null, node('div', { class: 'frame' }, canvas, overlay), node('figcaption', null, node('span', null, title), readout));
  }

  show() {
    for (const frame of this.frames) paint(frame.canvas, frame.bytes, frame.table, this.slice);
    this.point(null);
  }

  point(x, y) {
    const { w, h } = this.portrait;
    for (const frame of this.frames) {
      const marks = frame.boxes ? this.boxes() : [];
      if (x !== null) marks.push(draw('line', { class: 'cross', x1: x + .5, x2: x + .5, y1: 0, y2: h }), draw('line', { class: 'cross', x1: 0, x2: w, y1: y + .5, y2: y + .5 }));
      frame.overlay.replaceChildren(...marks);
      frame.readout.textContent = x === null || !frame.tell ? '' : frame.tell(frame.bytes.values[this.slice * w * h + y * w + x]);
    }
  }

  boxes() {
    const { patches, slices, stride, w } = this.portrait, z = slices[this.slice];
    return patches.flatMap((patch, k) => {
      const deep = slices.length ? 1 : 0;
      if (deep && (z < patch.start[0] || z >= patch.stop[0])) return [];
      const [top, left] = patch.start.slice(deep).map(v => v / stride), [end, right] = patch.stop.slice(deep).map(v => v / stride);
      const size = w / 14;
      return [...['shade', 'light'].map(kind => draw('rect', { class: kind, x: left, y: top, width: right - left, height: end - top })),
        draw('text', { x: left + size * .35, y: top + size * 1.05, style: `font-size:${size}px;stroke-width:${size / 5}px` }, String(k + 1))];
    });
  }
}
