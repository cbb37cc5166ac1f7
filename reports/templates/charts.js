"use strict";
// Draws the figures of the page.
(async () => {
  const scheme = matchMedia("(prefers-color-scheme: dark)");

  // Returns the text of an element that contains it as base64 of gzip.
  const decompress = (element) => {
    const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };

  const load = async () => {
    const script = document.createElement("script");
    script.textContent = await decompress(document.getElementById("bokeh"));
    document.head.append(script);
    Bokeh.logger.set_level("warn");
  };

  // Axes and grids take their colors from CSS variables when they are painted; texts inside a figure do not.
  const paint = (view) => {
    const color = getComputedStyle(document.body).color;
    for (const model of view.model.references()) {
      if (model.tags?.includes("text")) {
        model.text_color = { value: color };
      }
    }
    view.request_paint();
  };

  const draw = async (element) => {
    const data = await decompress(element.querySelector("script"));
    const [view] = await Bokeh.embed.embed_item(JSON.parse(data), element);
    paint(view);
    scheme.addEventListener("change", () => paint(view));
    // Bokeh makes the layer that takes events focusable, and gives it no name.
    const layer = view.canvas_view.events_el;
    layer.setAttribute("role", "img");
    layer.setAttribute("aria-label", element.dataset.figure);
    // By default a chart that can be zoomed takes every touch, and the page cannot be scrolled there.
    layer.style.touchAction = "pan-y pinch-zoom";
    const reset = () => view.model.reset.emit();
    layer.addEventListener("dblclick", reset);
    layer.addEventListener("keydown", (event) => event.key === "Escape" && reset());
  };

  const elements = [...document.querySelectorAll("[data-figure]")];
  try {
    await load();
  } catch (error) {
    for (const element of elements) {
      element.textContent = "This browser is too old to draw the chart. Its data is in the table below.";
    }
    throw error;
  }
  await Promise.all(elements.map(draw));
  performance.mark("drawn");
  document.body.classList.add("drawn");
})();
