// The contrast of every visible text with what lies behind it, as WCAG 2 computes it.
function channels(color) {
  const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
  return { rgb: [r, g, b], alpha: a };
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const { rgb, alpha } = channels(getComputedStyle(at).backgroundColor);
    if (alpha === 1) return rgb;
  }
  return [255, 255, 255];
}

const found = [];
for (const element of document.querySelectorAll("body *")) {
  const text = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
  if (!text.length || !element.checkVisibility() || element.closest(".sr, .skip")) continue;
  const style = getComputedStyle(element);
  const behind = ground(element);
  const opacity = Number(style.opacity);
  const ink = channels(style.color).rgb.map((v, i) => v * opacity + behind[i] * (1 - opacity));
  const [low, high] = [luminance(ink), luminance(behind)].sort((a, b) => a - b);
  found.push([text[0].data.trim(), (high + 0.05) / (low + 0.05)]);
}
return found;
