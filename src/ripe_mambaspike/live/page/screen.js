// The event view: frames of shades → colours on a canvas, and the attention above them.
const HEADER = 32, GLOW = [150, 255, 130], STRONGEST = .55;

/** A binary message → what it says and its shades. */
export function readFrame(buffer) {
  const view = new DataView(buffer);
  return {
    width: view.getUint16(0, true), height: view.getUint16(2, true), round: view.getUint32(4, true),
    position: view.getFloat64(8, true), span: view.getFloat64(16, true),
    events: view.getUint32(24, true), skipped: view.getUint32(28, true),
    shades: new Uint8Array(buffer, HEADER),
  };
}

/** Draws frames with a palette [121 × 3]. */
export class Screen {
  constructor(events, attention) {
    this.events = events;
    this.attention = attention;
    this.colours = new Uint32Array(256);
  }

  setPalette(flat) {
    const bytes = new Uint8ClampedArray(this.colours.buffer);
    bytes.fill(0);
    for (let index = 0; index * 3 < flat.length; index++) {
      bytes.set([flat[3 * index], flat[3 * index + 1], flat[3 * index + 2], 255], 4 * index);
    }
  }

  shape(width, height) {
    // Very long sensors would make a strip that no one can see.
    const shape = Math.min(4, Math.max(.25, width / height));
    this.events.parentElement.style.setProperty('--shape', shape.toFixed(4));
  }

  draw({ width, height, shades }) {
    const { events, colours } = this;
    if (events.width !== width || events.height !== height) { events.width = width; events.height = height; }
    const pen = events.getContext('2d'), image = pen.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let index = 0; index < pixels.length; index++) pixels[index] = colours[shades[index]];
    pen.putImageData(image, 0, 0);
  }

  /** A map of bytes in base64 from zero to its maximum, or nothing; `reach` is what full colour stands for. */
  drawAttention(map, reach) {
    this.attention.hidden = !map;
    if (!map) return;
    const { width, height, data } = map, levels = atob(data);
    this.attention.width = width;
    this.attention.height = height;
    const pen = this.attention.getContext('2d'), image = pen.createImageData(width, height);
    const scale = STRONGEST * (reach ? Math.min(1, map.max / reach) : 0);
    for (let index = 0; index < width * height; index++) {
      image.data.set([...GLOW, Math.round(levels.charCodeAt(index) * scale)], 4 * index);
    }
    pen.putImageData(image, 0, 0);
  }

  clear() {
    this.events.getContext('2d').clearRect(0, 0, this.events.width, this.events.height);
    this.drawAttention(null);
  }
}
