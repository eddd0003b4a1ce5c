// Local errors against the size of the patches.
addSection('sizes', 'Patch size', content => section('sizes', 'Patch size', 'In small patches over- and underconfidence cancel less, and fewer pixels make every error noisier. Mean over images.',
  live('grid halves', { metric: 'ece' }, [byMetric(DATA.calibration, choice)], ({ metric }) => Object.keys(content).map(region => {
    const { title } = metrics[metric], unit = metrics[metric].percent ? ' (%)' : '';
    const points = method => content[region][metric][method].map(([size, value]) => [size, known(value) ? value * (unit ? 100 : 1) : null, value]);
    return node('div', { class: 'card' }, node('h3', { class: 'head' }, regionName(region)), legend(), lines(methods.map(method => ({ method, points: points(method) })),
      { x: 'patch size (pixels)', y: `${title}${unit}, ${regionName(region)}`, tell: ([size, , value]) => [['patch size', String(size)], [title, inUnit(metric, value)]] }));
  }))));
