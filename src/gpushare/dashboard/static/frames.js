// Which GPUs of the map have reserved capacity.

const LEAST_DASHED = 14;

/** A dashed frame around each of them, of the nodes in these slots. */
export function framed(map, slots) {
  const { context, size, store } = map;
  context.save();
  context.strokeStyle = getComputedStyle(map.element).color;
  context.lineWidth = size >= LEAST_DASHED ? 2 : 1;
  context.setLineDash(size >= LEAST_DASHED ? [4, 3] : []);
  for (const slot of slots) {
    const { name, gpus } = store.nodes[slot];
    for (let gpu = 0; store.reserved.has(name) && gpu < gpus; gpu++) {
      if (!store.reservedOn(name, store.index(slot, gpu)).length) continue;
      const [x, y] = map.cellAt(map.placeOf[slot], gpu);
      context.strokeRect(x + 1, y + 1, size - 2, size - 2);
    }
  }
  context.restore();
}
