// Tables that sort when a heading is pressed: numbers from the least, then from the most; text by its letters.

// columns: [{title, of: row => number or text to sort by, show: row => nodes}]; `name` is that of the downloaded file
function sortable(name, columns, rows, { sorted = null, descending = false, pinned = [] } = {}) {
  const body = node('tbody');
  const heads = columns.map((column, k) => node('th', { scope: 'col' }, node('button', { type: 'button', onclick: () => press(k) }, column.title)));
  let current = sorted, down = descending;
  function press(k) {
    down = current === k ? !down : false;
    current = k;
    render();
  }
  function render() {
    const ordered = [...rows];
    if (current !== null) {
      const of = columns[current].of, sign = down ? -1 : 1;
      ordered.sort((a, b) => {
        const left = of(a), right = of(b);
        if (!known(left) || !known(right)) return known(right) - known(left);  // missing values go last either way
        return sign * (typeof left === 'string' ? left.localeCompare(right, undefined, { numeric: true }) : left - right);
      });
    }
    heads.forEach((head, k) => head.setAttribute('aria-sort', k === current ? (down ? 'descending' : 'ascending') : 'none'));
    body.replaceChildren(...ordered.map(row => rowOf(row)), ...pinned.map(row => rowOf(row, 'floor')));
  }
  const rowOf = (row, kind = null) => node('tr', { class: kind }, columns.map(column => {
    const shown = column.show(row);
    return shown instanceof HTMLTableCellElement ? shown : node('td', null, shown);
  }));
  render();
  const titles = columns.map(column => column.title.replaceAll('\n', ' '));
  const content = () => csv([titles, ...[...rows, ...pinned].map(row => columns.map(column => column.of(row)))]);
  return node('div', { class: 'scroll' }, node('table', { 'aria-label': name }, node('thead', null, node('tr', null, heads)), body),
    node('div', { class: 'downloads' }, download('CSV', name, 'text/csv', content)));
}

// A table as the terminal and papers show it: entries are text, sorted by the numbers that they begin with.
function writtenTable({ title, note, headings, rows, keys }) {
  const read = entry => entry === '-' ? null : isNaN(parseFloat(entry)) ? entry : parseFloat(entry.replaceAll(',', ''));
  const columns = headings.map((heading, k) => ({ title: heading || 'Meaning', of: row => k < keys ? row[k] : read(row[k]),
    show: row => node('td', { class: heading ? null : 'prose' }, k === 0 && methods.includes(row[k]) ? key(row[k]) : null, row[k]) }));
  return node('div', { class: 'card spaced' }, node('h3', { class: 'head' }, title), node('div', { class: 'tall' }, sortable(title, columns, rows)), node('p', { class: 'note' }, note));
}
const number = (title, of, format) => ({ title, of, show: row => format(of(row)) });
const nameColumn = (title, of = row => row.name) => ({ title, of, show: of });
const methodColumn = { title: 'Method', of: row => row.method, show: row => node('td', null, row.key === false ? null : key(row.method), row.method) };
