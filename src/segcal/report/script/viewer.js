// One case: all its pictures, which share the position in the volume and the pixel pointed at.

class CaseView {
  constructor(portrait) {
    this.portrait = portrait;
    this.size = portrait.kept.map(positions => positions.length);
    this.extent = portrait.shape.map((length, axis) => length * portrait.spacing[axis]);
    this.volume = this.size.length === 3;
    this.position = this.size.map(length => Math.floor(length / 2));
    this.axis = 0;
    this.frames = [];
    this.moved = [];
  }

  // The axes of rows and columns in a slice along an axis; an image has only one slice.
  plane(axis) { return this.volume ? [0, 1, 2].filter(other => other !== axis) : [0, 1]; }

  // A picture. `axis` fixes the axis of its slices, else it follows the view; `boxes` draws patches: 'shown' or 'all'.
  frame(title, bytes, table, tell, { boxes = null, axis = null, caption = true } = {}) {
    const canvas = node('canvas', { role: 'img', 'aria-label': title });
    const overlay = draw('svg', { preserveAspectRatio: 'none' }), readout = node('output'), holder = node('div', { class: 'frame' }, canvas, overlay);
    const frame = { canvas, overlay, readout, holder, bytes, table, tell, boxes, axis };
    this.frames.push(frame);
    canvas.addEventListener('pointermove', event => this.point(this.pixelAt(frame, event)));
    canvas.addEventListener('pointerleave', () => this.point(null));
    return node('figure', null, holder, caption ? node('figcaption', null, node('span', null, title), readout) : null);
  }

  pixelAt(frame, event) {
    const [rows, columns] = this.plane(frame.axis ?? this.axis), box = frame.canvas.getBoundingClientRect(), pixel = [...this.position];
    const inside = (share, axis) => Math.max(0, Math.min(this.size[axis] - 1, Math.floor(share * this.size[axis])));
    pixel[columns] = inside((event.clientX - box.left) / box.width, columns);
    pixel[rows] = inside((event.clientY - box.top) / box.height, rows);
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
    const shown = axis ?? this.axis, [rows, columns] = this.plane(shown), w = this.size[columns], h = this.size[rows];
    canvas.width = w; canvas.height = h;
    holder.style.aspectRatio = `${this.extent[columns]} / ${this.extent[rows]}`;
    overlay.setAttribute('viewBox', `0 0 ${this.extent[columns]} ${this.extent[rows]}`);
    const context = canvas.getContext('2d'), out = context.createImageData(w, h), pixel = [...this.position];
    for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) {
      pixel[rows] = y; pixel[columns] = x;
      const from = this.index(pixel), to = 4 * (y * w + x);
      const colour = bytes.colour ? bytes.colour.subarray(4 * from, 4 * from + 3) : table[bytes.values[from]] || EMPTY;
      out.data[to] = colour[0]; out.data[to + 1] = colour[1]; out.data[to + 2] = colour[2]; out.data[to + 3] = 255;
    }
    context.putImageData(out, 0, 0);
  }

  // Marks a pixel in every picture that shows it, and tells the value of every map there.
  point(pixel) {
    for (const frame of this.frames) {
      const axis = frame.axis ?? this.axis, marks = frame.boxes ? this.boxes(axis, frame.boxes) : [];
      const at = pixel || (frame.axis !== null && this.volume ? this.position : null);
      if (at && (!this.volume || at[axis] === this.position[axis])) marks.push(...this.cross(axis, at));
      frame.overlay.replaceChildren(...marks);
      frame.readout.textContent = pixel && frame.tell && frame.bytes.values ? frame.tell(frame.bytes.values[this.index(pixel)]) : '';
    }
  }

  cross(axis, pixel) {
    const [rows, columns] = this.plane(axis), at = other => (pixel[other] + .5) / this.size[other] * this.extent[other];
    return [draw('line', { class: 'cross', x1: at(columns), x2: at(columns), y1: 0, y2: this.extent[rows] }),
      draw('line', { class: 'cross', x1: 0, x2: this.extent[columns], y1: at(rows), y2: at(rows) })];
  }

  boxes(axis, which) {
    const { patches, boxes, kept, spacing } = this.portrait, [rows, columns] = this.plane(axis), place = kept[axis][this.position[axis]];
    const size = this.extent[columns] / 14, cut = ({ start, stop }) => !this.volume || (place >= start[axis] && place < stop[axis]);
    const rect = ({ start, stop }, kind) => draw('rect', { class: kind, x: start[columns] * spacing[columns], y: start[rows] * spacing[rows],
      width: (stop[columns] - start[columns]) * spacing[columns], height: (stop[rows] - start[rows]) * spacing[rows] });
    const all = which === 'all' ? boxes.map(([start, stop]) => ({ start, stop })).filter(cut).map(box => rect(box, 'thin')) : [];
    return [...all, ...patches.map((patch, k) => ({ ...patch, k })).filter(cut).flatMap(patch => [rect(patch, 'shade'), rect(patch, 'light'),
      draw('text', { x: patch.start[columns] * spacing[columns] + size * .35, y: patch.start[rows] * spacing[rows] + size * 1.05, style: `font-size:${size}px;stroke-width:${size / 5}px` }, String(patch.k + 1))])];
  }
}

// Slices of one map along the three axes: sliders and keys move through the volume, a click moves all three.
function volumeViewer(view, maps) {
  const { kept, shape } = view.portrait, frames = [];
  const planes = [0, 1, 2].map(axis => {
    const figure = view.frame(`slice along axis ${axis + 1}`, maps[0].bytes, maps[0].table, maps[0].tell, { axis, boxes: 'shown' });
    const frame = view.frames[view.frames.length - 1], [rows, columns] = view.plane(axis), slider = node('input', {
      type: 'range', min: 0, max: view.size[axis] - 1, value: view.position[axis], 'aria-label': `slice along axis ${axis + 1}`,
      oninput: event => view.move(view.position.map((value, other) => other === axis ? Number(event.target.value) : value)) });
    const label = node('output', { class: 'slice' });
    frames.push(frame);
    frame.canvas.setAttribute('tabindex', '0');
    frame.canvas.addEventListener('click', event => view.move(view.pixelAt(frame, event)));
    frame.canvas.addEventListener('keydown', event => {
      const step = { ArrowUp: [rows, -1], ArrowDown: [rows, 1], ArrowLeft: [columns, -1], ArrowRight: [columns, 1], PageUp: [axis, 1], PageDown: [axis, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      view.move(view.position.map((value, other) => value + (other === step[0] ? step[1] : 0)));
    });
    const tell = () => { slider.value = view.position[axis]; label.textContent = `axis ${axis + 1}: ${kept[axis][view.position[axis]] + 1} of ${shape[axis]}`; };
    view.moved.push(tell);
    tell();
    return node('div', null, figure, node('div', { class: 'slider' }, slider, label));
  });
  const show = name => {
    const map = maps.find(one => one.name === name);
    for (const frame of frames) Object.assign(frame, { bytes: map.bytes, table: map.table, tell: map.tell });
    view.show();
  };
  return node('div', { class: 'card' }, node('div', { class: 'controls' }, selection('Show', maps.map(map => [map.name, map.name]), show)),
    node('div', { class: 'maps planes' }, planes),
    node('p', { class: 'note' }, 'Click to move there; arrow keys move within a slice, Page Up and Page Down through the slices.'));
}
