// One case: all its pictures, which share the position in the volume and the pixel pointed at.

const LONGEST = 3, HIGHEST = 21;  // ratio of the sides of a picture, and its height in rem
const GREYS = greyTable();
const colourAt = (bytes, table, from) => bytes.colour ? bytes.colour.subarray(4 * from, 4 * from + 3) : table[bytes.values[from]] || EMPTY;

class CaseView {
  constructor(portrait) {
    this.portrait = portrait;
    this.size = portrait.kept.map(positions => positions.length);
    this.extent = portrait.shape.map((length, axis) => length * portrait.spacing[axis]);
    this.volume = this.size.length === 3;
    this.toward = this.volume ? portrait.orientation : null;
    this.image = null;
    this.opacity = 1;
    this.position = this.size.map(length => Math.floor(length / 2));
    this.axis = 0;
    this.frames = [];
    this.moved = [];
  }

  // The axes of rows and columns in a slice along an axis; an image has only one slice. Where the orientation of a volume
  // is known, slices are shown as radiologists read them: superior and anterior up, the patient's right on the left.
  plane(axis) {
    if (!this.volume) return [0, 1];
    const rank = other => this.toward ? ['SI', 'AP', 'LR'].findIndex(pair => pair.includes(this.toward[other])) : other;
    return [0, 1, 2].filter(other => other !== axis).sort((a, b) => rank(a) - rank(b));
  }
  // Width and height of a slice as it is drawn, whose sides differ by a limited factor, however thick the slices are.
  drawn(axis) {
    const [rows, columns] = this.plane(axis), width = this.extent[columns], height = this.extent[rows];
    const shown = width / Math.max(1 / LONGEST, Math.min(LONGEST, width / height));
    return { rows, columns, width, height: shown, stretch: shown / height };
  }
  flipped(axis) { return this.toward !== null && 'SAR'.includes(this.toward[axis]); }
  shown(value, axis) { return this.flipped(axis) ? this.size[axis] - 1 - value : value; }
  planeName(axis) { return this.toward ? { S: 'axial', I: 'axial', A: 'coronal', P: 'coronal', L: 'sagittal', R: 'sagittal' }[this.toward[axis]] : `axis ${axis + 1}`; }

  // A picture. `axis` fixes the axis of its slices, else it follows the view; `boxes` draws patches: 'shown' or 'all'.
  frame(title, bytes, table, tell, { name = title, boxes = null, axis = null, caption = true } = {}) {
    const canvas = node('canvas', { role: 'img', 'aria-label': name });
    const overlay = draw('svg', { preserveAspectRatio: 'none', 'aria-hidden': 'true' }), readout = node('output'), holder = node('div', { class: 'frame' }, canvas, overlay);
    const frame = { canvas, overlay, readout, holder, bytes, table, tell, boxes, axis };
    this.frames.push(frame);
    canvas.addEventListener('pointermove', event => this.point(this.pixelAt(frame, event)));
    canvas.addEventListener('pointerleave', () => this.point(null));
    return node('figure', null, holder, caption ? node('figcaption', null, node('span', null, title), readout) : null);
  }

  pixelAt(frame, event) {
    const [rows, columns] = this.plane(frame.axis ?? this.axis), box = frame.canvas.getBoundingClientRect(), pixel = [...this.position];
    const inside = (share, axis) => Math.max(0, Math.min(this.size[axis] - 1, Math.floor(share * this.size[axis])));
    pixel[columns] = this.shown(inside((event.clientX - box.left) / box.width, columns), columns);
    pixel[rows] = this.shown(inside((event.clientY - box.top) / box.height, rows), rows);
    return pixel;
  }

  index(pixel) { return pixel.reduce((place, value, axis) => place * this.size[axis] + value, 0); }

  move(position) {
    this.position = position.map((value, axis) => Math.max(0, Math.min(this.size[axis] - 1, value)));
    this.show();
    for (const tell of this.moved) tell();
  }

  show() {
    for (const frame of this.frames) this.paint(frame);
    this.point(null);
  }

  paint({ canvas, bytes, table, axis, holder, overlay }) {
    const { rows, columns, width, height } = this.drawn(axis ?? this.axis), w = this.size[columns], h = this.size[rows];
    canvas.width = w; canvas.height = h;
    holder.style.aspectRatio = String(width / height);
    holder.style.width = `min(100%, ${(HIGHEST * width / height).toFixed(1)}rem)`;
    overlay.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const context = canvas.getContext('2d'), out = context.createImageData(w, h), pixel = [...this.position];
    for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) {
      pixel[rows] = this.shown(y, rows); pixel[columns] = this.shown(x, columns);
      const from = this.index(pixel), to = 4 * (y * w + x), colour = colourAt(bytes, table, from);
      const under = this.image && this.opacity < 1 ? colourAt(this.image, GREYS, from) : colour;
      for (let c = 0; c < 3; c++) out.data[to + c] = under[c] + this.opacity * (colour[c] - under[c]);
      out.data[to + 3] = 255;
    }
    context.putImageData(out, 0, 0);
  }

  // Marks a pixel in every picture that shows it, and tells the value of every map there.
  point(pixel) {
    for (const frame of this.frames) {
      const axis = frame.axis ?? this.axis, marks = [...this.letters(axis), ...(frame.boxes ? this.boxes(axis, frame.boxes) : [])];
      const at = pixel || (frame.axis !== null && this.volume ? this.position : null);
      if (at && (!this.volume || at[axis] === this.position[axis])) marks.push(...this.cross(axis, at));
      frame.overlay.replaceChildren(...marks);
      frame.readout.textContent = pixel && frame.tell && frame.bytes.values ? frame.tell(frame.bytes.values[this.index(pixel)]) : '';
    }
  }

  cross(axis, pixel) {
    const { rows, columns, width, height } = this.drawn(axis), at = other => (this.shown(pixel[other], other) + .5) / this.size[other];
    const x = width * at(columns), y = height * at(rows);
    return [draw('line', { class: 'cross', x1: x, x2: x, y1: 0, y2: height }), draw('line', { class: 'cross', x1: 0, x2: width, y1: y, y2: y })];
  }

  // The directions of the patient at the edges of a slice.
  letters(axis) {
    if (!this.toward) return [];
    const { rows, columns, width, height } = this.drawn(axis), size = Math.min(width, height) / 12;
    const opposite = { L: 'R', R: 'L', A: 'P', P: 'A', S: 'I', I: 'S' }, last = other => this.flipped(other) ? opposite[this.toward[other]] : this.toward[other];
    const letter = (x, y, words) => draw('text', { class: 'letter', x, y, 'text-anchor': 'middle', style: `font-size:${size}px;stroke-width:${size / 6}px` }, words);
    return [letter(size * .6, height / 2, opposite[last(columns)]), letter(width - size * .6, height / 2, last(columns)),
      letter(width / 2, size, opposite[last(rows)]), letter(width / 2, height - size * .3, last(rows))];
  }

  boxes(axis, which) {
    const { patches, boxes, kept, spacing } = this.portrait, { rows, columns, width, height, stretch } = this.drawn(axis), place = kept[axis][this.position[axis]];
    const size = Math.min(width, height) / 14, cut = ({ start, stop }) => !this.volume || (place >= start[axis] && place < stop[axis]);
    const first = ({ start, stop }, other) => this.flipped(other) ? this.extent[other] - stop[other] * spacing[other] : start[other] * spacing[other];
    const rect = (box, kind) => draw('rect', { class: kind, x: first(box, columns), y: stretch * first(box, rows),
      width: (box.stop[columns] - box.start[columns]) * spacing[columns], height: stretch * (box.stop[rows] - box.start[rows]) * spacing[rows] });
    const all = which === 'all' ? boxes.map(([start, stop]) => ({ start, stop })).filter(cut).map(box => rect(box, 'thin')) : [];
    return [...all, ...patches.map((patch, k) => ({ ...patch, k })).filter(cut).flatMap(patch => [rect(patch, 'shade'), rect(patch, 'light'),
      draw('text', { x: Math.max(first(patch, columns) + size * .35, size * 1.4), y: stretch * first(patch, rows) + size * 1.05, style: `font-size:${size}px;stroke-width:${size / 5}px` }, String(patch.k + 1))])];
  }
}

// Slices of one map along the three axes: sliders and keys move through the volume, a click moves all three.
function volumeViewer(view, maps) {
  const { kept, shape } = view.portrait, frames = [];
  const planes = [0, 1, 2].map(axis => {
    const figure = view.frame(`${view.planeName(axis)} slice`, maps[0].bytes, maps[0].table, maps[0].tell, { axis, boxes: 'shown' });
    const frame = view.frames[view.frames.length - 1], [rows, columns] = view.plane(axis), slider = node('input', {
      type: 'range', min: 0, max: view.size[axis] - 1, value: view.position[axis], 'aria-label': `${view.planeName(axis)} slice`,
      oninput: event => view.move(view.position.map((value, other) => other === axis ? Number(event.target.value) : value)) });
    const label = node('output', { class: 'slice' });
    frames.push(frame);
    frame.canvas.setAttribute('tabindex', '0');
    frame.canvas.addEventListener('click', event => view.move(view.pixelAt(frame, event)));
    frame.canvas.addEventListener('keydown', event => {
      const step = { ArrowUp: [rows, view.flipped(rows) ? 1 : -1], ArrowDown: [rows, view.flipped(rows) ? -1 : 1], ArrowLeft: [columns, view.flipped(columns) ? 1 : -1], ArrowRight: [columns, view.flipped(columns) ? -1 : 1], PageUp: [axis, 1], PageDown: [axis, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      view.move(view.position.map((value, other) => value + (other === step[0] ? step[1] : 0)));
    });
    const tell = () => { slider.value = view.position[axis]; label.textContent = `${view.planeName(axis)}: ${kept[axis][view.position[axis]] + 1} of ${shape[axis]}`; };
    view.moved.push(tell);
    tell();
    return node('div', null, figure, node('div', { class: 'slider' }, slider, label));
  });
  const show = name => {
    const map = maps.find(one => one.name === name);
    for (const frame of frames) Object.assign(frame, { bytes: map.bytes, table: map.table, tell: map.tell });
    view.show();
  };
  return node('div', { class: 'card' }, node('div', { class: 'controls' }, selection('Show', maps.map(map => [map.name, map.name]), maps[0].name, show)),
    node('div', { class: 'maps planes' }, planes),
    node('p', { class: 'note' }, 'Click to move there; arrow keys move within a slice, Page Up and Page Down through the slices.'));
}
