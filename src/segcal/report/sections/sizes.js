// Local errors against the size of the patches.
addSection('sizes', 'Patch size', content => {
  const holder = node('div', { class: 'grid halves' });
  function render(metric) {
    const unit = metrics[metric].percent ? ' (%)' : '';
    holder.replaceChildren(...Object.keys(content).map(region => node('div', { class: 'card' }, node('h3', { class: 'head' }, regionName(region)), legend(),
      lines(methods.map(method => ({ method, points: content[region][metric][method].map(([size, value]) => [size, known(value) ? value * (unit ? 100 : 1) : null, value]) })),
        { x: 'patch size (pixels)', y: `${metrics[metric].title}${unit}, ${regionName(region)}`, tell: ([size, , value]) => [['patch size', String(size)], [metrics[metric].title, inUnit(metric, value)]] }))));
  }
  render('ece');
  return section('sizes', 'Patch size', 'In small patches over- and underconfidence cancel less, and fewer pixels make every error noisier. Mean over images.',
    node('div', { class: 'controls' }, choice('Metric', DATA.calibration.map(metric => [metric, metrics[metric].title]), 'ece', render)), holder);
});
